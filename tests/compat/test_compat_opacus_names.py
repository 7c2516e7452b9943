"""Every public name of Opacus is where Opacus has it, or on a list that says why it is not."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from saltflat.compat.opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from saltflat.compat.opacus.grad_sample.functorch import make_functional
from saltflat.compat.opacus.utils import per_sample_gradients_utils as gradients
from saltflat.compat.opacus.utils.per_sample_gradients_utils import check_per_sample_gradients_are_correct

OURS = "saltflat.compat.opacus"
RULES = "how its hooks compute one kind of layer; the engine sees operations instead"
FORM = "how its loader guesses the form of an empty batch; ours asks the data set"
PROCESSES = "several processes train through saltflat.fit"
ABSENT = {
    "accountants.analysis": "the arithmetic below its accountants; ours is saltflat.accounting",
    "data_loader.dtype_safe": FORM,
    "data_loader.shape_safe": FORM,
    "distributed.average_gradients": PROCESSES,
    "grad_sample.dp_rnn": RULES,
    "grad_sample.embedding.compute_embeddingbag_gradsampler": RULES,
    "grad_sample.grad_sample_module.create_or_accumulate_grad_sample": RULES,
    "grad_sample.grad_sample_module.promote_current_grad_sample": RULES,
    "grad_sample.grad_sample_module_fast_gradient_clipping.create_norm_sample": RULES,
    "grad_sample.grad_sample_module_fast_gradient_clipping_fsdp": PROCESSES,
    "grad_sample.grad_sample_module_fast_gradient_clipping_tp": PROCESSES,
    "layers.dp_rnn": "the parts of its recurrent layers; ours are torch's own",
    "layers.param_rename": "for the names of parameters in its layers; ours have torch's",
    "lightning": "needs Lightning, which nothing else here does",
    "optimizers.ddp_perlayeroptimizer": PROCESSES,
    "optimizers.ddpoptimizer": PROCESSES,
    "optimizers.ddpoptimizer_fast_gradient_clipping": PROCESSES,
    "optimizers.fsdpoptimizer_fast_gradient_clipping": PROCESSES,
    "utils.adaptive_clipping": "an engine for ghost mode alone; clipping='adaptive' is in every mode here",
    "utils.fsdp_utils": PROCESSES,
    "utils.tensor_utils.filter_dilated_rows": "a part of its unfold3d",
    "utils.uniform_sampler.DistributedUniformWithReplacementSampler": PROCESSES,
    "validators.batch_norm": "one file a layer; ours are in module_validator",
    "validators.gru": "one file a layer; ours are in module_validator",
    "validators.instance_norm": "one file a layer; ours are in module_validator",
    "validators.lstm": "one file a layer; ours are in module_validator",
    "validators.multihead_attention": "one file a layer; ours are in module_validator",
}  # fmt: skip
KEPT = {"layers.dp_rnn": {"DPGRU", "DPLSTM", "DPRNN"}}


def their_names() -> Iterator[tuple[str, str]]:
    """Module, below ``opacus``, and public name, where it is defined."""
    opacus = pytest.importorskip("opacus", reason="Opacus is a peer, not a dependency")
    for found in pkgutil.walk_packages(opacus.__path__, "opacus."):
        path = found.name.removeprefix("opacus.")
        if path.startswith(("tests", "lightning")):  # the second cannot be imported without Lightning
            continue
        module = importlib.import_module(found.name)
        for name, value in vars(module).items():
            defined = inspect.isclass(value) or inspect.isfunction(value)
            if name[0] != "_" and defined and value.__module__ == found.name:
                yield path, name


def is_here(path: str, name: str) -> bool:
    try:
        return hasattr(importlib.import_module(f"{OURS}.{path}"), name)
    except ModuleNotFoundError:
        return False


def reason(path: str, name: str) -> str | None:
    if name in KEPT.get(path, ()):
        return None
    places = [f"{path}.{name}", path, *(path.rsplit(".", n)[0] for n in range(1, path.count(".") + 1))]
    return next((ABSENT[place] for place in places if place in ABSENT), None)


@pytest.mark.filterwarnings("ignore")
def test_every_public_name_is_here_or_has_a_reason_not_to_be() -> None:
    """Fails when a name is missing, and when the list names something that is there."""
    names = list(their_names())
    assert len(names) > 100
    missing = [f"{path}.{name}" for path, name in names if not is_here(path, name) and not reason(path, name)]
    assert missing == []
    needless = [f"{path}.{name}" for path, name in names if is_here(path, name) and reason(path, name)]
    assert needless == []


def test_several_processes_are_refused_when_asked_for_and_not_on_import() -> None:
    with pytest.raises(NotImplementedError, match="torchrun"):
        DifferentiallyPrivateDistributedDataParallel(nn.Linear(1, 1))


def test_a_model_as_a_function_of_its_parameters() -> None:
    model, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), torch.randn(5, 3)
    function, parameters = make_functional(model)
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    torch.testing.assert_close(function(parameters, x), model(x))
    _, detached = make_functional(model, disable_autograd_tracking=True)
    assert not any(value.requires_grad for value in detached)


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ew"])
def test_gradients_are_checked_one_example_at_a_time(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(4, 2, 6)
    model = nn.Sequential(nn.Conv1d(2, 3, 3), nn.GroupNorm(3, 3), nn.Flatten(), nn.Linear(12, 2))
    assert check_per_sample_gradients_are_correct(x, model, grad_sample_mode=mode)
    with pytest.raises(RuntimeError, match="non-empty"):
        check_per_sample_gradients_are_correct(x[:0], model)
    right = gradients.compute_opacus_grad_sample

    def wrong(*given: Any) -> dict[str, torch.Tensor]:
        return {name: grads + 1e-3 for name, grads in right(*given).items()}

    monkeypatch.setattr(gradients, "compute_opacus_grad_sample", wrong)
    assert not check_per_sample_gradients_are_correct(x, model, grad_sample_mode=mode)
