"""The criterion of ``grad_sample_mode="ghost"``: a loss a row, whose ``backward()`` is one backward pass here."""

from __future__ import annotations

from typing import Any

from torch import Tensor


class DPTensorFastGradientClipping:
    """Losses by example that behave as their mean or sum: ``backward()``, ``item()``, arithmetic."""

    def __init__(
        self, module: Any, optimizer: Any, loss_per_sample: Tensor, loss_reduction: str = "mean"
    ) -> None:
        self.module, self.optimizer = module, optimizer
        self.loss_per_sample, self.loss_reduction = loss_per_sample, loss_reduction

    def _reduced(self) -> Tensor:
        if self.loss_reduction == "mean":
            return self.loss_per_sample.mean()
        if self.loss_reduction == "sum":
            return self.loss_per_sample.sum()
        raise ValueError(
            f"loss_reduction = {self.loss_reduction}. Only 'sum' and 'mean' losses are supported"
        )

    def item(self) -> float:
        """The reduced loss as a number. Not private."""
        return float(self._reduced().detach())

    def detach(self) -> Tensor:
        """The reduced loss without its history."""
        return self._reduced().detach()

    def backward(self) -> None:
        """Compute what ``optimizer.step()`` needs, in one backward pass."""
        self._reduced().backward()

    def _with(self, losses: Tensor) -> DPTensorFastGradientClipping:
        return DPTensorFastGradientClipping(self.module, self.optimizer, losses, self.loss_reduction)

    def _other(self, other: Any) -> Any:
        if not isinstance(other, DPTensorFastGradientClipping):
            return other
        if other.loss_reduction != self.loss_reduction:
            raise ValueError(
                f"Cannot combine losses with different reductions: {self.loss_reduction} vs {other.loss_reduction}"
            )
        return other.loss_per_sample

    def __add__(self, other: Any) -> DPTensorFastGradientClipping:
        return self._with(self.loss_per_sample + self._other(other))

    __radd__ = __add__

    def __sub__(self, other: Any) -> DPTensorFastGradientClipping:
        return self._with(self.loss_per_sample - self._other(other))

    def __rsub__(self, other: Any) -> DPTensorFastGradientClipping:
        return self._with(self._other(other) - self.loss_per_sample)

    def __mul__(self, other: Any) -> DPTensorFastGradientClipping:
        return self._with(self.loss_per_sample * other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> DPTensorFastGradientClipping:
        return self._with(self.loss_per_sample / other)

    def __neg__(self) -> DPTensorFastGradientClipping:
        return self._with(-self.loss_per_sample)

    def __float__(self) -> float:
        return self.item()

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec)

    def __repr__(self) -> str:
        return (
            f"DPTensorFastGradientClipping(loss_reduction={self.loss_reduction}, "
            f"shape={self.loss_per_sample.shape})"
        )

    def __str__(self) -> str:
        return f"DPTensorFastGradientClipping({self.item():.4f})"


class DPLossFastGradientClipping:
    """A criterion that gives a loss by example.

    ``shape=(batch, length, …)`` in a call makes sequences the examples, where criterion and logits were
    flattened to tokens; tokens with the criterion's ``ignore_index`` do not count.
    """

    def __init__(self, module: Any, optimizer: Any, criterion: Any, loss_reduction: str = "mean") -> None:
        if loss_reduction not in ("mean", "sum"):
            raise AssertionError("loss_reduction should be either 'mean' or 'sum'")
        if not hasattr(criterion, "reduction"):
            criterion.reduction = module.loss_reduction
        reductions = {loss_reduction, criterion.reduction, module.loss_reduction, optimizer.loss_reduction}
        if len(reductions) != 1:
            raise AssertionError(
                "loss_reduction should be the same across GradSampleModule, Optimizer, Criterion, and loss_reduction"
            )
        self.module, self.optimizer = module, optimizer
        self.criterion, self.loss_reduction = criterion, loss_reduction

    def __call__(
        self, *args: Any, shape: tuple[int, ...] | None = None, **kwargs: Any
    ) -> DPTensorFastGradientClipping:
        before = self.criterion.reduction
        try:
            self.criterion.reduction = "none"
            losses: Tensor = self.criterion(*args, **kwargs)
        finally:
            self.criterion.reduction = before
        if shape is not None and len(losses) == shape[0] * shape[1]:
            losses = self._by_sequence(losses.view(shape[0], shape[1]), args, kwargs)
        return DPTensorFastGradientClipping(self.module, self.optimizer, losses, self.loss_reduction)

    def _by_sequence(self, losses: Tensor, args: Any, kwargs: dict[str, Any]) -> Tensor:
        if self.loss_reduction == "sum":
            return losses.sum(dim=1)
        ignored = getattr(self.criterion, "ignore_index", None)
        targets = kwargs.get("target", args[1] if len(args) > 1 else None)
        if ignored is None or targets is None:
            return losses.mean(dim=1)
        counted = (targets.view(losses.shape) != ignored).sum(dim=1).clamp(min=1)
        return losses.sum(dim=1) / counted
