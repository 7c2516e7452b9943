"""Real bugs of private training, as they were found in libraries and papers' code, and what guards against each.

The table names the tests and, where there are some, the mutations of `tests/audit` that put the bug back and
must be caught. The tests here check that all of them exist, and hold what was guarded nowhere else.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch
from torch import nn

import saltflat as sf
from core_helpers import plan_of, small_data, small_net
from saltflat.data.source import Examples
from saltflat.engine.clipped_sum import clipped_sum
from saltflat.errors import InputError
from saltflat.mechanism.randomness import Randomness

HERE = Path(__file__).parent

# bug -> tests that fail with it, mutations that put it back
BUGS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "noise scaled for the sum added to the mean": (
        ("mechanism/test_mechanism_noise.py::test_the_sum_is_noised_and_then_divided",
         "training/test_training_randomness.py::test_the_noise_in_the_weights_has_the_declared_law"),
        ("noise for the sum on the mean", "noise for the mean on the sum", "a wrong divisor"),
    ),
    "noise once per micro-batch": (
        ("training/test_training_randomness.py::test_the_noise_in_the_weights_has_the_declared_law",
         "test_laws_of_records.py::test_draws_of_noise_equal_ledger_entries"),
        ("noise once per micro-batch", "noise once per piece of a large batch"),
    ),
    "the same noise on two tensors": (
        ("training/test_training_randomness.py::test_no_noise_is_drawn_twice",),
        ("the same noise in every tensor", "the same noise in every row of a matrix", "the same noise in every step"),
    ),
    "the same noise on two ranks": (
        ("mechanism/test_mechanism_streams.py::test_a_forked_process_draws_other_noise",
         "test_bug_list.py::test_two_processes_share_neither_noise_nor_batches",
         "test_bug_list.py::test_several_ranks_never_train_each_for_itself",
         "ranks/test_ranks_together.py::test_noise_is_added_once_in_total"),
        ("noise from a fixed seed", "noise from the global generator"),
    ),
    "ghost norms that forget the bias": (
        ("engine/test_engine_sensitivity.py::test_ghosts_and_gradients_give_the_same_sum",
         "test_bug_list.py::test_a_bias_counts_for_the_norm"),
        ("a norm without the biases",),
    ),
    "ghost norms that ignore the clip norm": (
        ("test_laws.py::test_one_example_moves_the_sum_by_at_most_the_clip_norm",
         "test_laws.py::test_a_far_example_does_move_the_sum_by_the_clip_norm",
         "test_bug_list.py::test_the_clip_norm_that_is_asked_for_is_used"),
        (),
    ),
    "clipping and summing in the short type of autocast": (
        ("engine/test_engine_autocast.py::test_one_row_more_moves_a_long_sum_by_the_clip_norm_at_most",
         "engine/test_engine_autocast.py::test_the_bound_holds_to_the_precision_of_the_weights",
         "compat/test_compat_opacus_autocast.py::test_the_clip_norm_holds_and_gradients_keep_the_type_of_the_weights"),
        (),
    ),
    "tied parameters counted as a second batch": (
        ("test_laws.py::test_tied_parameters_are_one", "engine/test_engine_layers.py::test_tied_and_reused"),
        ("tied weights: each use is a second batch", "tied weights: only one use counts for the norm"),
    ),
    "two batches before one noise draw": (
        ("test_laws_of_records.py::test_draws_of_noise_equal_ledger_entries",
         "test_laws_of_records.py::test_gradients_of_one_step_do_not_reach_the_next"),
        ("two batches for one release",),
    ),
    "n leaks through divisor, rate or steps": (
        ("test_laws_of_records.py::test_nothing_outside_the_batch_depends_on_the_number_of_rows",
         "test_laws_of_records.py::test_the_folder_says_nothing_of_the_rows"),
        ("the realised batch size as divisor",),
    ),
    "one NaN example turns all weights NaN": (
        ("test_laws.py::test_a_step_never_raises_on_data_and_weights_stay_finite",
         "test_laws.py::test_one_example_moves_the_sum_by_at_most_the_clip_norm"),
        ("NaN examples that spread",),
    ),
    "an empty Poisson batch crashes": (
        ("test_laws.py::test_an_empty_batch_releases_pure_noise",
         "test_laws.py::test_fit_goes_through_with_nothing_but_empty_batches",
         "engine/test_engine_sensitivity.py::test_an_empty_batch_gives_zeros_with_the_right_names"),
        ("no noise on an empty sum",),
    ),
    "fixed batches accounted as Poisson": (
        ("test_laws.py::test_batch_sizes_are_binomial", "test_laws.py::test_the_share_that_is_seen_exactly_once"),
        ("batches of a fixed size", "a shuffle instead of Poisson sampling", "sampling with replacement"),
    ),
    "ranks that train on the same data": (
        ("test_bug_list.py::test_several_ranks_never_train_each_for_itself",
         "ranks/test_ranks_together.py::test_every_sampled_row_is_computed_once_by_the_rank_it_belongs_to",
         "test_bug_list.py::test_two_processes_share_neither_noise_nor_batches"),
        ("every batch used twice",),
    ),
    "a calibration whose ε exceeds the target": (
        ("accounting/test_accounting_laws.py::test_calibration_never_exceeds_its_target_and_wastes_nothing",
         "accounting/test_accounting_laws.py::test_two_phase_calibration_never_exceeds_its_target",
         "accounting/test_accounting_selection.py::test_a_calibration_keeps_its_promise"),
        (),
    ),
    "reading ε changes the accountant": (
        ("accounting/test_accounting_laws.py::test_reading_epsilon_changes_nothing",),
        ("an accountant that halves",),
    ),
    "a weighted sampler silently replaced": (
        ("training/test_training_inputs.py::test_samplers_that_would_be_replaced_are_refused_with_the_reason",),
        (),
    ),
    "coordinates left without noise": (
        ("test_laws.py::test_every_coordinate_has_noise",),
        ("a coordinate without noise", "a tensor without noise", "a coordinate with a tenth of the noise"),
    ),
    "clipping per tensor where the whole vector was meant": (
        ("test_bug_list.py::test_the_whole_vector_is_clipped",
         "test_laws.py::test_one_example_moves_the_sum_by_at_most_the_clip_norm"),
        ("a clip per tensor",),
    ),
    "BatchNorm mixes examples": (
        ("engine/test_engine_probe.py::test_batch_norm_is_refused_by_name_with_the_cure",
         "models/test_friendly.py::test_examples_are_mixed_before_and_not_after"),
        (),
    ),
    "exact training metrics shown as private": (
        ("test_laws_of_records.py::test_with_test_data_only_its_own_figures_are_stored",
         "test_laws_of_records.py::test_the_folder_says_nothing_of_the_rows",
         "test_bug_list.py::test_what_a_run_gives_back_holds_no_figure_of_the_training_rows",
         "training/test_training_tune.py::test_only_the_best_is_shown"),
        (),
    ),
    "weights left displaced after an ascent over several micro-batches": (
        ("methods/test_methods_laws.py::test_a_step_starts_from_the_undisplaced_weights",
         "training/test_training_fit.py::test_displaced_weights_come_back_bit_for_bit_also_after_an_error"),
        ("displaced weights that are kept",),
    ),
    # found here, by reading: each had passed all of the above
    "dropout masks that follow from a known seed, so that one row changes those of others": (
        ("training/test_training_randomness.py::test_masks_and_views_are_not_known_to_whoever_knows_a_seed",
         "training/test_training_randomness.py::test_a_run_that_goes_on_draws_what_nobody_knows"),
        (),
    ),
    "a finite row whose Gram matrices overflow is not clipped at all": (
        ("engine/test_engine_edges.py::test_terms_that_are_too_large_for_float32_are_not_taken_for_resolved",),
        (),
    ),
    "a blank row at a standardised weight is clipped too little": (
        ("engine/test_engine_derived.py::test_one_blank_row_moves_the_sum_by_at_most_the_clip_norm",),
        (),
    ),
    "lengths of millions of numbers come out too short in float32": (
        ("engine/test_engine_edges.py::test_a_million_equal_numbers_are_as_long_as_they_are",
         "engine/test_engine_edges.py::test_a_matrix_formed_from_a_sequence_is_as_long_as_it_is"),
        (),
    ),
    "compiled loops read beyond a tensor whose shape does not fit": (
        ("engine/test_engine_edges.py::test_what_torch_refuses_is_refused",),
        (),
    ),
    "what a survey cost is given back": (
        ("estimators/test_estimators_privacy.py::test_a_survey_that_was_released_is_spent",),
        (),
    ),
    "ε of rows and ε of clients are added up": (
        ("training/test_training_evaluate_privately.py::test_a_run_over_clients_is_evaluated_by_clients",),
        (),
    ),
    "classes read from the rows are claimed to be secret": (
        ("cli/test_cli_train.py::test_classes_that_were_read_from_the_rows_are_not_claimed_to_be_secret",
         "training/test_training_inputs.py::test_secret_classes_that_were_read_from_the_rows_are_told_of"),
        (),
    ),
}  # fmt: skip


def functions_in(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


def mutation_names() -> set[str]:
    """The first argument of every ``@mutation(...)``."""
    return {
        node.args[0].value
        for path in (HERE / "audit").glob("audit_breaking_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "mutation"
        and isinstance(node.args[0], ast.Constant)
    }


@pytest.mark.parametrize("bug", BUGS)
def test_every_bug_has_its_guards(bug: str) -> None:
    """Fails when a guard is renamed or removed without another in its place (tried)."""
    guards, mutations = BUGS[bug]
    assert guards
    for guard in guards:
        file, _, name = guard.partition("::")
        assert name in functions_in(HERE / file), f"{guard} is gone: what guards against: {bug}?"
    assert set(mutations) <= mutation_names(), f"a mutation is gone: what puts back: {bug}?"


# --- what was guarded nowhere else ----------------------------------------------------------------------


def loss_of(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def length(grads: dict[str, torch.Tensor]) -> float:
    return float(torch.cat([part.flatten() for part in grads.values()]).norm())


def test_a_bias_counts_for_the_norm() -> None:
    """An input of zeros moves biases alone: their gradient is clipped."""
    model = nn.Linear(4, 3).double()
    with torch.no_grad():
        model.bias.copy_(torch.tensor([9.0, -9.0, 0.0]))
    found = clipped_sum(model, loss_of, torch.zeros(1, 4).double(), torch.tensor([1]), 0.1)
    assert float(found.grads["weight"].norm()) == 0
    assert length(found.grads) == pytest.approx(0.1)


@pytest.mark.parametrize("clip_norm", [1e-3, 0.1, 2.0])
def test_the_clip_norm_that_is_asked_for_is_used(clip_norm: float) -> None:
    """Every example is far out, so that the sum of one is exactly as long as the clip norm."""
    rows = small_data(8)
    for row in range(8):
        some = rows.inputs[row : row + 1] * 1e3
        found = clipped_sum(small_net(), loss_of, some, rows.targets[row : row + 1], clip_norm)
        assert length(found.grads) <= clip_norm * (1 + 1e-9)
    wrong = 1 - rows.targets[:1].clamp(max=1)
    assert length(clipped_sum(small_net(), loss_of, rows.inputs[:1] * 1e3, wrong, clip_norm).grads) > 0


def test_the_whole_vector_is_clipped() -> None:
    """Many tensors, each shorter than the clip norm, all of them together longer. Per tensor nothing would be cut."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *[layer for _ in range(8) for layer in (nn.Linear(6, 6), nn.Tanh())], nn.Linear(6, 3)
    ).double()
    inputs, targets = torch.randn(1, 6).double(), torch.tensor([0])
    whole = clipped_sum(model, loss_of, inputs, targets, 1e9).grads
    longest = max(float(part.norm()) for part in whole.values())
    clip_norm = (longest + length(whole)) / 2
    assert longest < clip_norm < length(whole)
    assert length(clipped_sum(model, loss_of, inputs, targets, clip_norm).grads) == pytest.approx(clip_norm)


@pytest.mark.parametrize("tier", ["fast", "secure", "exact"])
def test_two_processes_share_neither_noise_nor_batches(tier: str) -> None:
    """Two ranks that start alike, with the same global seed, draw different numbers from both sources."""
    draws = []
    for _ in range(2):
        torch.manual_seed(7)
        randomness = Randomness.fresh(tier=tier)
        sources = (randomness.noise, randomness.sampling)
        draws.append(
            [
                torch.rand(50, generator=source) if isinstance(source, torch.Generator) else source.words(50)
                for source in sources
            ]
        )
    for first, second in zip(*draws):
        assert not torch.equal(first, second)
    assert not torch.equal(*draws[0])


def test_several_ranks_never_train_each_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would train on all rows, with noise of its own. They meet before anything is checked or written, and
    what is not for several ranks is refused; `tests/ranks` has what they do together.
    """
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)

    class MetError(Exception):
        pass

    def met(*_: object, **__: object) -> None:
        raise MetError

    monkeypatch.setattr("saltflat.training.lead.Group", met)
    with pytest.raises(MetError):
        sf.fit(small_net(), small_data(), plan_of(), progress=False)
    with pytest.raises(MetError):
        next(sf.steps(small_net(), small_data(), plan_of()))
    with pytest.raises(InputError, match="is not for several ranks"):
        sf.tune(small_net(), small_data(), grid={"learning_rate": [1.0]}, epsilon=1, delta=1e-3)


def test_what_a_run_gives_back_holds_no_figure_of_the_training_rows() -> None:
    """Two data sets, the same weights in the end: without test data, a run says the same of both."""
    rows = small_data(40)
    other = Examples(rows.inputs, (rows.targets + 1) % 3, num_classes=3)
    histories = []
    for data in (rows, other):
        run = sf.fit(small_net(), data, plan_of(steps=2), progress=False)
        assert run.accuracy is None
        histories.append(run.history)
    assert histories[0] == histories[1]
