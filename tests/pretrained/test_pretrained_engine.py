"""The engine on the structures that pretrained models have, and what it does not do for their frozen parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from pretrained_helpers import (
    CLASSES,
    LanguageModel,
    TextEncoder,
    VisionTransformer,
    assert_agrees,
    labels,
    next_words,
    shaken,
    texts,
)
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import saltflat as sf
from engine.engine_helpers import Fn
from saltflat.engine import clipped_sum
from saltflat.training.losses import cross_entropy

PARTS = ("all", "last-layer", "bias-only", "lora")
MODELS: dict[str, Callable[[], nn.Module]] = {
    "text, fused attention": TextEncoder,
    "text, attention written out": lambda: TextEncoder(fused=False),
    "text, checkpoints": lambda: TextEncoder(checkpoints=True),
    "images": VisionTransformer,
    "tied language model": LanguageModel,
}


def rows_for(model: nn.Module) -> tuple[Any, Tensor, Callable[[Any, Tensor], Tensor]]:
    if isinstance(model, VisionTransformer):
        generator = torch.Generator().manual_seed(0)
        return torch.randn(6, 3, 8, 8, generator=generator), labels(), cross_entropy
    if isinstance(model, LanguageModel):
        ids = texts()["input_ids"]
        return {"input_ids": ids}, ids, next_words
    return texts(), labels(), cross_entropy


# peft knows the turned linear layer of transformers, and not the one that is written out here
CASES = [(n, part) for n in MODELS for part in PARTS if (n, part) != ("tied language model", "lora")]


@pytest.mark.parametrize(("name", "part"), CASES)
def test_norms_and_sums_are_those_of_explicit_gradients(name: str, part: Any) -> None:
    """In float64, and on the tape: none of these models is computed example by example."""
    torch.manual_seed(0)
    model = shaken(sf.models.tune_only(MODELS[name](), part))
    rules = assert_agrees(model, *rows_for(model))
    assert set(rules) == {n for n, p in model.named_parameters() if p.requires_grad}


def test_dropout_draws_and_the_sum_is_still_bounded() -> None:
    """In training mode, each unit alone: what it adds is at most the clip norm, and the same numbers come again."""
    torch.manual_seed(0)
    model = TextEncoder(dropout=0.3).train()
    inputs = texts()
    ends = []
    for _ in range(2):
        torch.manual_seed(7)
        found = clipped_sum(model, cross_entropy, inputs, labels(), clip_norm=0.1)
        ends.append(torch.cat([g.flatten() for g in found.grads.values()]))
    assert torch.equal(*ends)
    for row in range(6):
        one = {key: value[row : row + 1] for key, value in inputs.items()}
        alone = clipped_sum(model, cross_entropy, one, labels()[row : row + 1], clip_norm=0.1)
        assert float(torch.cat([g.flatten() for g in alone.grads.values()]).norm()) <= 0.1 * (1 + 1e-5)


def flops(model: nn.Module, inputs: Any, targets: Tensor, loss_fn: Callable[..., Tensor]) -> int:
    clipped_sum(model, loss_fn, inputs, targets, 1.0)  # what is looked at once for a model is not counted
    with FlopCounterMode(display=False) as counter:
        clipped_sum(model, loss_fn, inputs, targets, 1.0)
    return counter.get_total_flops()


def kept_bytes(model: nn.Module, inputs: Any, targets: Tensor, loss_fn: Callable[..., Tensor]) -> int:
    """What is kept for the backward pass of one micro-batch, without the weights themselves."""
    clipped_sum(model, loss_fn, inputs, targets, 1.0)
    kept: dict[int, int] = {}
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def pack(t: Tensor) -> Tensor:
        kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        clipped_sum(model, loss_fn, inputs, targets, 1.0)
    return sum(size for address, size in kept.items() if address not in weights)


@pytest.mark.parametrize("name", ["text, attention written out", "images"])
def test_frozen_parts_cost_nothing(name: str) -> None:
    """Operations, memory and rules."""
    torch.manual_seed(0)
    model = MODELS[name]()
    inputs, targets, loss_fn = rows_for(model)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(**inputs) if isinstance(inputs, dict) else model(inputs)
    forward = counter.get_total_flops()
    work, memory = {}, {}
    for part in ("last-layer", "bias-only", "all"):
        sf.models.tune_only(model, part)  # type: ignore[arg-type]
        work[part] = flops(model, inputs, targets, loss_fn)
        memory[part] = kept_bytes(model, inputs, targets, loss_fn)
        found = sf.layer_rules(model, (inputs, targets), loss_fn)
        assert set(found) == {n for n, p in model.named_parameters() if p.requires_grad}
    assert work["last-layer"] <= 1.05 * forward
    assert (
        work["bias-only"] <= 2.2 * forward
    )  # forward, and back through the activations: no weight's gradient
    assert work["all"] > 2.7 * forward
    assert memory["last-layer"] <= 0.05 * memory["all"]
    assert memory["bias-only"] <= 0.75 * memory["all"]


def test_lora_costs_less_than_everything() -> None:
    torch.manual_seed(0)
    inputs, targets, loss_fn = rows_for(TextEncoder())
    whole = sf.models.tune_only(TextEncoder(), "all")
    low = sf.models.tune_only(TextEncoder(), "lora", rank=1, layers=("query", "value"))
    assert flops(low, inputs, targets, loss_fn) < 0.8 * flops(whole, inputs, targets, loss_fn)
    assert kept_bytes(low, inputs, targets, loss_fn) < kept_bytes(whole, inputs, targets, loss_fn)


def test_a_cache_that_starts_empty_leaves_rows_in_order() -> None:
    """As decoders keep their keys. Fails when an empty vector counts as a batch of rows (it once was so)."""
    torch.manual_seed(0)
    model = Fn(
        lambda self, x: self.head(torch.cat([torch.tensor([]), self.keys(x)], dim=-2).mean(1)),
        keys=nn.Linear(5, 8), head=nn.Linear(8, CLASSES),
    )  # fmt: skip
    assert set(assert_agrees(model, torch.randn(6, 4, 5), labels()).values()) == {"linear"}


def test_ghost_norms_serve_long_sequences() -> None:
    """A large matrix over a short sequence never has its per-example gradient formed: it would be 80 MB."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(50, 512), nn.Linear(512, 2048), nn.Tanh(), nn.Linear(2048, CLASSES))
    ids = torch.randint(0, 50, (20, 4))

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs.mean(1), targets)

    clipped_sum(model, loss, ids, labels(20), 1.0)
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            for t in out if isinstance(out, tuple | list) else (out,):
                largest = max(largest, t.numel() if isinstance(t, Tensor) else 0)
            return out

    with Watch():
        clipped_sum(model, loss, ids, labels(20), 1.0)
    assert largest < 20 * 512 * 2048 / 4
