"""Every trainable tensor gets a gradient, or is named before anything is spent."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from pretrained_helpers import LanguageModel, TextEncoder, VisionTransformer, labels, next_words, texts
from torch import Tensor, nn

import saltflat as sf
from core_helpers import plan_of, small_data, small_net
from engine.engine_helpers import Fn
from saltflat.errors import InputError
from saltflat.training.synthetic import Synthetic, looked_up

IMAGES = torch.zeros(40, 3, 8, 8), torch.zeros(40, dtype=torch.long)


def with_pooler_unused() -> nn.Module:
    model = TextEncoder()
    model.pooler.forward = lambda x: x  # type: ignore[method-assign]
    return model


def test_the_parts_of_an_encoder_get_gradients() -> None:
    found = sf.check_gradients(TextEncoder(), (texts(), labels()))
    assert not found.idle
    cancelling = {name for name, finding in found.found.items() if finding == "cancels"}
    # Softmax does not notice what is added to all scores: the bias of the keys.
    assert cancelling == {"blocks.0.attention.key.bias", "blocks.1.attention.key.bias"}
    assert found.found["words.weight"] == found.found["positions.weight"] == "gradient"


def test_other_models_get_gradients() -> None:
    assert not sf.check_gradients(VisionTransformer(), IMAGES).idle
    ids = texts()["input_ids"]
    assert not sf.check_gradients(LanguageModel(), ({"input_ids": ids}, ids), next_words).idle


def test_half_of_lora_waits_for_the_other_half() -> None:
    """At its start one matrix is zero, so the other gets no gradient: zero here, and not everywhere."""
    model = sf.models.tune_only(TextEncoder(), "lora")
    found = sf.check_gradients(model, (texts(), labels()))
    for name, finding in found.found.items():
        assert finding == ("later" if ".lora_A." in name else "gradient"), name
    assert "gets a gradient once the other weights have moved" in str(found)


def cut_off(self: Any, x: Tensor) -> Tensor:
    return self.head(torch.tanh(self.body(x)).detach())


def rounded(self: Any, x: Tensor) -> Tensor:
    return self.head(torch.tanh((self.body(x) * 4).round() / 4))


def gate_is_zero(self: Any, x: Tensor) -> Tensor:
    return self.head(x.repeat(1, 2) + self.gate * torch.tanh(self.body(x)))


def net(function: Any, **more: Any) -> nn.Module:
    torch.manual_seed(0)
    return Fn(function, body=nn.Linear(4, 8), head=nn.Linear(8, 3), **more).double()


CASES: dict[str, tuple[Any, dict[str, str]]] = {
    "detached": (lambda: net(cut_off), {"body": "cut off", "head": "gradient"}),
    "rounded": (lambda: net(rounded), {"body": "cut off", "head": "gradient"}),
    "a spare layer": (
        lambda: net(lambda self, x: self.head(torch.tanh(self.body(x))), spare=nn.Linear(2, 2)),
        {"body": "gradient", "head": "gradient", "spare": "unused"},
    ),
    "behind a gate that starts at zero": (
        lambda: net(gate_is_zero, gate=nn.Parameter(torch.zeros(1))),
        {"body": "later", "gate": "gradient", "head": "gradient"},
    ),
    "behind a gate that is frozen at zero": (
        lambda: net(gate_is_zero, gate=nn.Parameter(torch.zeros(1), requires_grad=False)),
        {"body": "unused", "head": "gradient"},
    ),
    "a bias that a norm takes away again": (
        lambda: net(lambda self, x: self.head(nn.functional.layer_norm(self.body(x) + self.all, (8,))),
                    all=nn.Parameter(torch.zeros(1))),
        {"body": "gradient", "all": "cancels", "head": "gradient"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_found(case: str) -> None:
    build, expected = CASES[case]
    found = sf.check_gradients(build(), small_data())
    for name, finding in found.found.items():
        assert finding == expected[name.partition(".")[0]], name


def test_units_that_are_dead_at_the_start_are_no_reason_to_refuse() -> None:
    """A ReLU that lets nothing through here may do so elsewhere."""
    model = net(lambda self, x: self.head(torch.relu(self.body(x))))
    with torch.no_grad():
        model.body.bias.fill_(-50.0)
    found = sf.check_gradients(model, small_data())
    assert found.found["body.weight"] == "later"


def test_fit_refuses_before_anything_is_spent_or_written(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        sf.fit(net(cut_off), small_data(), plan_of(), out=tmp_path / "run", progress=False)
    told = str(caught.value)
    assert "trainable tensors that noise alone would move, 2 of 4" in told
    assert "body.weight, body.bias (part of the loss, with detach" in told
    assert "requires_grad_(False)" in told
    assert not (tmp_path / "run").exists()


def test_steps_and_tuning_refuse_too() -> None:
    with pytest.raises(InputError, match="noise alone"):
        next(iter(sf.steps(net(cut_off), small_data(), plan_of())))
    with pytest.raises(InputError, match="noise alone"):
        sf.tune(
            net(cut_off), small_data(), grid={"learning_rate": [0.1]}, epsilon=3.0, delta=1e-4, population=40,
            batch_size=8, steps=2, seed=0, progress=False,
        )  # fmt: skip


def test_clients_are_asked_for_nothing_either() -> None:
    clients = sf.federated.partition(small_data(), 10, by="iid")
    plan = sf.plans.dp_fedavg(epsilon=8, clients=10, rate=0.5, rounds=1, local_epochs=1)
    with pytest.raises(InputError, match="noise alone"):
        sf.federate(net(cut_off), clients, plan, progress=False)
    run = sf.federate(net(cut_off), clients, plan, progress=False, check_gradients=False)
    assert run.epsilon <= 8


def test_it_can_be_accepted_or_cured() -> None:
    model = net(cut_off)
    assert sf.fit(model, small_data(), plan_of(), check_gradients=False, progress=False).epsilon > 0
    model = sf.models.tune_only(net(cut_off), "all", freeze=("body.*",))
    assert sf.fit(model, small_data(), plan_of(), progress=False).epsilon > 0


def test_rows_of_ones_own_for_the_check() -> None:
    made_up = torch.randn(9, 4, dtype=torch.float64), torch.zeros(9, dtype=torch.long)
    assert sf.fit(small_net(), small_data(), plan_of(), check_gradients=made_up, progress=False).epsilon > 0
    with pytest.raises(InputError, match="noise alone"):
        sf.fit(net(cut_off), small_data(), plan_of(), check_gradients=made_up, progress=False)
    with pytest.raises(InputError, match="made-up rows"):
        sf.fit(small_net(), small_data(), plan_of(), check_gradients="yes", progress=False)
    wrong = torch.randn(9, 5, dtype=torch.float64), torch.zeros(9, dtype=torch.long)
    with pytest.raises(InputError, match="rows that the model and its loss take"):
        sf.fit(small_net(), small_data(), plan_of(), check_gradients=wrong, progress=False)


def test_where_no_rows_can_be_made_up_it_is_said() -> None:
    """A loss that knows its own labels only: the check cannot be made, and the run goes on."""
    known = {5: 0, 6: 1, 7: 2}

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(
            outputs, torch.tensor([known[int(t)] for t in targets]), reduction="none"
        )

    inputs, targets = small_data().inputs, small_data().targets + 5
    with pytest.warns(UserWarning, match="It was not checked that every trainable tensor gets a gradient"):
        run = sf.fit(small_net(), (inputs, targets), plan_of(), loss_fn=loss, progress=False)
    assert run.epsilon > 0
    made_up = torch.randn(9, 4, dtype=torch.float64), torch.full((9,), 6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sf.fit(
            small_net(), (inputs, targets), plan_of(), loss_fn=loss, check_gradients=made_up, progress=False
        )


def test_the_model_and_the_generators_are_left_as_they_were() -> None:
    """Bit for bit, buffers and gradients too."""
    model = sf.models.tune_only(TextEncoder(dropout=0.2), "lora").train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(11)
    state = torch.get_rng_state()
    sf.check_gradients(model, (texts(), labels()))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_only_the_form_of_the_data_is_looked_at() -> None:
    """Two data sets of one form get the same rows."""
    model = TextEncoder()
    one, other = texts(seed=1), texts(seed=2)
    other["input_ids"].fill_(1)
    first, second = Synthetic(model, one, labels()), Synthetic(model, other, 0 * labels())
    for number in range(3):
        for key in one:
            assert torch.equal(first.inputs_of(number)[key], second.inputs_of(number)[key])
        assert torch.equal(first.targets_of(number, 3), second.targets_of(number, 3))


def test_numbers_of_words_stay_within_their_tables() -> None:
    model = TextEncoder()
    rows = dict(texts(), token_type_ids=torch.zeros(6, 7, dtype=torch.long))
    assert looked_up(model, {key: torch.zeros_like(value) for key, value in rows.items()}) == [23, None, 2]
    made_up = Synthetic(model, rows, labels())
    drawn = [made_up.inputs_of(number) for number in range(20)]
    assert {int(d["input_ids"].max()) for d in drawn} <= set(range(23))
    assert max(int(d["input_ids"].max()) for d in drawn) > 15
    assert all(set(d["attention_mask"].unique().tolist()) <= {0, 1} for d in drawn)
    assert all(bool((d["attention_mask"][:, 0] == 1).all()) for d in drawn)
    assert max(int(d["token_type_ids"].max()) for d in drawn) == 1


def test_tables_are_found_however_they_are_read() -> None:
    table = nn.Parameter(torch.randn(9, 4))
    ways: dict[str, Any] = {
        "index": lambda self, t: self.table[t].sum(1),
        "index_select": lambda self, t: self.table.index_select(0, t.flatten()).view(*t.shape, -1).sum(1),
        "one hot": lambda self, t: nn.functional.one_hot(t, 9).float().sum(1) @ self.table,
        "bag": lambda self, t: nn.functional.embedding_bag(t, self.table),
    }
    for name, way in ways.items():
        assert looked_up(Fn(way, table=table), torch.zeros(4, 5, dtype=torch.long)) == [9], name
