"""Are the per-example gradients of a model right? Compared with those of one example at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from saltflat.compat.opacus.grad_sample import wrap_model
from saltflat.compat.opacus.utils.module_utils import clone_module, trainable_parameters
from saltflat.compat.opacus.utils.packed_sequences import is_packed

REDUCTIONS = ("sum", "mean")


class ModelWithLoss(nn.Module):
    """A model and a loss that needs no labels: the mean or sum of the absolute outputs."""

    supported_reductions: ClassVar[list[str]] = list(REDUCTIONS)

    def __init__(self, module: nn.Module, loss_reduction: str = "mean") -> None:
        super().__init__()
        if loss_reduction not in self.supported_reductions:
            raise ValueError(
                f"Passed loss_reduction={loss_reduction}. Only {self.supported_reductions} supported."
            )
        self.wrapped_module = module
        self.criterion = nn.L1Loss(reduction=loss_reduction)

    def forward(self, x: Any) -> Tensor:
        """The loss; a tuple is passed as several arguments."""
        several = isinstance(x, tuple) and not is_packed(x)
        out = self.wrapped_module(*x) if several else self.wrapped_module(x)
        if not is_packed(out):
            return self._loss(out)
        if self.criterion.reduction == "sum":
            return self._loss(out.data)
        return torch.stack([self._loss(row) for row in unpack_packedsequences(out)]).mean()

    def _loss(self, out: Tensor) -> Tensor:
        loss: Tensor = self.criterion(out, torch.zeros_like(out))
        return loss


def unpack_packedsequences(X: PackedSequence) -> list[Tensor]:
    """The sequences in the order in which they are packed, longest first."""
    padded, lengths = pad_packed_sequence(X, batch_first=True)
    order = range(len(lengths)) if X.sorted_indices is None else X.sorted_indices.tolist()
    return [padded[i, : lengths[i]] for i in order]


def is_batch_empty(batch: Tensor | Iterable[Tensor]) -> bool:
    """Whether there is no example in it."""
    return (batch if isinstance(batch, Tensor) else next(iter(batch))).numel() == 0


def check_torch_version_for_ew_sample() -> bool:
    """Every version of torch that saltflat takes has expanded weights."""
    return True


def get_grad_sample_modes(use_ew: bool = False) -> list[str]:
    """The modes that can be compared."""
    return ["hooks", "functorch", *(["ew"] if use_ew else [])]


def compute_microbatch_grad_sample(
    x: Any,
    module: nn.Module,
    batch_first: bool = True,
    loss_reduction: str = "mean",
    chunk_method: Callable[[Any], Iterable[Any]] = iter,
) -> dict[str, Tensor]:
    """The gradient of each example, from a backward pass of its own: slow, and plainly right."""
    torch.manual_seed(0)
    model = ModelWithLoss(clone_module(module), loss_reduction)
    rows = x if batch_first or isinstance(x, list) else x.transpose(0, 1)
    found: dict[str, list[Tensor]] = {name: [] for name, _ in trainable_parameters(model.wrapped_module)}
    for row in chunk_method(rows):
        model.zero_grad()
        model(row if isinstance(row, tuple) else row.unsqueeze(0 if batch_first else 1)).backward()
        for name, p in trainable_parameters(model.wrapped_module):
            found[name].append(torch.zeros_like(p) if p.grad is None else p.grad.detach().clone())
    return {name: torch.stack(grads) for name, grads in found.items()}


def compute_microbatch_grad_sample_tensor_or_seq(
    x: Any, module: nn.Module, batch_first: bool = True, loss_reduction: str = "mean"
) -> dict[str, Tensor]:
    """The same for a tensor or a packed sequence, whose examples come longest first."""
    rows = unpack_packedsequences(x) if is_packed(x) else x
    return compute_microbatch_grad_sample(rows, module, batch_first, loss_reduction)


def compute_opacus_grad_sample(
    x: Any,
    module: nn.Module,
    batch_first: bool = True,
    loss_reduction: str = "mean",
    grad_sample_mode: str = "hooks",
) -> dict[str, Tensor]:
    """The gradient of each example, by the engine; the name is Opacus's."""
    torch.manual_seed(0)
    wrapped: Any = wrap_model(
        clone_module(module), grad_sample_mode, batch_first=batch_first, loss_reduction=loss_reduction
    )
    ModelWithLoss(wrapped, loss_reduction)(x).backward()
    return {name: p.grad_sample for name, p in trainable_parameters(wrapped._module)}  # type: ignore[attr-defined]


def compute_grad_samples_microbatch_and_opacus(
    x: Any,
    module: nn.Module,
    batch_first: bool = True,
    loss_reduction: str = "mean",
    grad_sample_mode: str = "hooks",
    chunk_method: Callable[[Any], Iterable[Any]] = iter,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Both, to be compared."""
    if is_batch_empty(x):
        raise RuntimeError("x is expected to be non-empty.")
    rows = unpack_packedsequences(x) if is_packed(x) else x
    return (
        compute_microbatch_grad_sample(rows, module, batch_first, loss_reduction, chunk_method),
        compute_opacus_grad_sample(x, module, batch_first, loss_reduction, grad_sample_mode),
    )


def check_per_sample_gradients_are_correct(
    x: Any,
    module: nn.Module,
    *,
    batch_first: bool = True,
    atol: float = 10e-6,
    rtol: float = 10e-5,
    grad_sample_mode: str = "hooks",
) -> bool:
    """Whether both agree, for a loss that is a sum and for one that is a mean.

    >>> check_per_sample_gradients_are_correct(torch.randn(4, 3), nn.Linear(3, 2))
    True
    """
    for reduction in REDUCTIONS:
        slow, quick = compute_grad_samples_microbatch_and_opacus(
            x, module, batch_first, reduction, grad_sample_mode
        )
        for name, grads in quick.items():
            if grads.shape != slow[name].shape or not torch.allclose(grads, slow[name], rtol=rtol, atol=atol):
                return False
    return True
