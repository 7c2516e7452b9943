"""Every public name of Opacus is where Opacus has it, or on a list that says why it is not."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from compat_helpers import made_private
from torch import nn

from saltflat.compat.opacus.grad_sample import GradSampleModule
from saltflat.compat.opacus.grad_sample.functorch import make_functional
from saltflat.compat.opacus.utils import per_sample_gradients_utils as gradients
from saltflat.compat.opacus.utils.per_sample_gradients_utils import check_per_sample_gradients_are_correct

OURS = "saltflat.compat.opacus"
RULES = "how its hooks compute one kind of layer; the engine sees operations instead"
FORM = "how its loader guesses the form of an empty batch; ours asks the data set"
ABSENT = {
    "accountants.analysis": "the arithmetic below its accountants; ours is saltflat.accounting",
    "data_loader.dtype_safe": FORM,
    "data_loader.shape_safe": FORM,
    "grad_sample.dp_rnn": RULES,
    "grad_sample.embedding.compute_embeddingbag_gradsampler": RULES,
    "grad_sample.grad_sample_module.create_or_accumulate_grad_sample": RULES,
    "grad_sample.grad_sample_module.promote_current_grad_sample": RULES,
    "grad_sample.grad_sample_module_fast_gradient_clipping.create_norm_sample": RULES,
    "layers.dp_rnn": "the parts of its recurrent layers; ours are torch's own",
    "layers.param_rename": "for the names of parameters in its layers; ours have torch's",
    "lightning": "needs Lightning, which nothing else here does",
    "utils.adaptive_clipping": "an engine for ghost mode alone; clipping='adaptive' is in every mode here",
    "utils.tensor_utils.filter_dilated_rows": "a part of its unfold3d",
    "validators.batch_norm": "one file a layer; ours are in module_validator",
    "validators.gru": "one file a layer; ours are in module_validator",
    "validators.instance_norm": "one file a layer; ours are in module_validator",
    "validators.lstm": "one file a layer; ours are in module_validator",
    "validators.multihead_attention": "one file a layer; ours are in module_validator",
}  # fmt: skip
ABSENT_MEMBERS = {
    "capture_activations_hook": RULES,
    "capture_backprops_hook": RULES,
    "forward_layer": "a part of its recurrent layers; ours are torch's own",
    "initialize_cells": "a part of its recurrent layers; ours are torch's own",
    "iterate_layers": "a part of its recurrent layers; ours are torch's own",
    "iterate_submodules": RULES,
    "log_module_gradient_sample_mode": "tells which of its two ways a layer takes; here is one",
    "rearrange_grad_samples": RULES,
    "set_pattern_param_sample_norm_sum": "for tensors in pieces, which are refused here",
    "set_rename_map": "for the names of parameters in its layers; ours have torch's",
    "unsqueeze_0_2": "a part of its attention; ours is torch's own",
    "update_max_grad_norm": "moves the clip norm by a count; ours does so once, where the count gets its noise",
}
"""Of classes that are here."""
ABSENT_CONSTANTS = {
    "OPACUS_PARAM_MONKEYPATCH_ATTRS": "what its hooks put on parameters; ours are those of another class meanwhile",
    "RNN_CELL_TYPES": "the parts of its recurrent layers; ours are torch's own",
}
ABSTRACT = {"AbstractGradSampleHooks", "AbstractGradSampleModule"}
"""Made by nobody, so that the parameters of their making do not matter."""
KEPT = {"layers.dp_rnn": {"DPGRU", "DPLSTM", "DPRNN"}}


def their_modules() -> Iterator[tuple[str, Any]]:
    """Path below ``opacus``, and the module."""
    opacus = pytest.importorskip("opacus", reason="Opacus is a peer, not a dependency")
    for found in pkgutil.walk_packages(opacus.__path__, "opacus."):
        path = found.name.removeprefix("opacus.")
        if not path.startswith(("tests", "lightning")):  # the second cannot be imported without Lightning
            yield path, importlib.import_module(found.name)


def their_names() -> Iterator[tuple[str, str]]:
    """Module, below ``opacus``, and public name, where it is defined."""
    for path, module in their_modules():
        for name, value in vars(module).items():
            if name[0] != "_" and is_defined(value) and value.__module__ == module.__name__:
                yield path, name


def is_defined(value: Any) -> bool:
    return inspect.isclass(value) or inspect.isfunction(value)


def in_both() -> Iterator[tuple[str, Any, Any]]:
    """What is defined there and is here as well: its path, theirs and ours."""
    for path, name in their_names():
        if is_here(path, name):
            theirs = getattr(importlib.import_module(f"opacus.{path}"), name)
            yield f"{path}.{name}", theirs, getattr(importlib.import_module(f"{OURS}.{path}"), name)


def members(kind: type) -> Iterator[str]:
    """The public ones that Opacus defines, and not torch."""
    for name in dir(kind):
        home = next((each for each in kind.__mro__ if name in vars(each)), object)
        if name[0] != "_" and home.__module__.startswith("opacus"):
            yield name


def taken(value: Any) -> tuple[list[str], bool]:
    """The names of the arguments that something can be called with, and whether it takes any other."""
    if inspect.isclass(value):
        # What an __init__ hands on by **kwargs is taken by those that come after it.
        names: list[str] = []
        for kind in value.__mro__:
            if "__init__" not in vars(kind) or kind in (object, nn.Module, torch.optim.Optimizer):
                continue
            own, others = taken(vars(kind)["__init__"])
            names += own[1:]
            if not others:
                break
        return names, False
    found = inspect.signature(value).parameters.values()
    named = [p.name for p in found if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return named, any(p.kind is p.VAR_KEYWORD for p in found)


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


@pytest.mark.filterwarnings("ignore")
def test_packages_hand_out_what_those_of_opacus_do() -> None:
    """Fails when ``opacus.grad_sample`` has a function that can be imported here from its own file only."""
    missing = [
        f"{path}.{name}"
        for path, module in their_modules() if hasattr(module, "__path__") and is_here(path, "__path__")
        for name, value in vars(module).items()
        if name[0] != "_" and is_defined(value) and value.__module__.startswith("opacus.") and not is_here(path, name)
        and not reason(value.__module__.removeprefix("opacus."), name)
    ]  # fmt: skip
    assert missing == []


@pytest.mark.filterwarnings("ignore")
def test_constants_are_here_or_have_a_reason_not_to_be() -> None:
    found = {
        name: is_here(path, name) for path, module in their_modules() if is_here(path, "__name__")
        for name, value in vars(module).items() if name.isupper() and not inspect.isclass(value)
    }  # fmt: skip
    assert {name for name, here in found.items() if not here} == set(ABSENT_CONSTANTS)


@pytest.mark.filterwarnings("ignore")
def test_every_public_member_is_here_or_has_a_reason_not_to_be() -> None:
    """Fails when a class lacks a member, and when the list names something that is there."""
    found = [
        (f"{path}.{name}", name, hasattr(ours, name))
        for path, theirs, ours in in_both() if inspect.isclass(theirs) for name in members(theirs)
    ]  # fmt: skip
    assert len(found) > 200
    assert [path for path, name, here in found if not here and name not in ABSENT_MEMBERS] == []
    assert {name for _, name, here in found if not here} == set(ABSENT_MEMBERS)


@pytest.mark.filterwarnings("ignore")
def test_arguments_have_the_same_names() -> None:
    """Failed for ``register_grad_sampler(target_class_or_classes=...)`` and four others."""
    pairs = [each for each in in_both() if each[0].rsplit(".", 1)[1] not in ABSTRACT]
    pairs += [
        (f"{path}.{name}", getattr(theirs, name), getattr(ours, name))
        for path, theirs, ours in in_both() if inspect.isclass(theirs)
        for name in members(theirs) if inspect.isroutine(getattr(theirs, name)) and hasattr(ours, name)
    ]  # fmt: skip
    assert len(pairs) > 200
    missing = {}
    for path, theirs, ours in pairs:
        names, others = taken(ours)
        lacking = [name for name in taken(theirs)[0] if name not in names]
        if lacking and not others:
            missing[path] = lacking
    assert missing == {}


def test_recording_can_be_taken_up_again() -> None:
    model = GradSampleModule(nn.Linear(3, 2))
    with pytest.raises(ValueError, match="twice"):
        model.add_hooks()
    model.remove_hooks()
    model.add_hooks(loss_reduction="sum")
    model(torch.ones(4, 3)).sum().backward()
    torch.testing.assert_close(model._module.weight.grad_sample, torch.ones(4, 2, 3))
    model.cleanup()
    with pytest.raises(ValueError, match="Wrap it again"):
        model.add_hooks()


@pytest.mark.parametrize("kind", ["DataParallel", "FullyShardedDataParallel", "FSDPModule"])
def test_models_in_pieces_or_on_several_devices_are_refused(kind: str) -> None:
    """Also where a part of the model is. Their classes need a process group, so these have the names alone."""
    part = type("Sharded", (type(kind, (nn.Linear,), {}),), {})(5, 3)
    with pytest.raises(NotImplementedError, match=f"{kind}: .* whole model(.|\n)*FSDP2Wrapper"):
        made_private(model=lambda: nn.Sequential(part))


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
