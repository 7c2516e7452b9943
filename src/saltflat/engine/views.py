"""Views of a unit at weights of their own: their gradients are added up one view after the other."""

from __future__ import annotations

from torch import Tensor

from saltflat.engine.uses import DirectUse, OuterUse, Use, merged


class Views:
    """The sum of several views' uses, which must be asked while the weights are those of the view.

    A unit is clipped once, so its gradients are needed as a sum over the views. What a matrix keeps for one
    row a view (two vectors) is put together as it is. Everything else is added up in place: memory for the
    gradients of two views, however many there are.

    >>> import torch
    >>> views = Views()
    >>> for _ in range(3):
    ...     views.add({"w": DirectUse(torch.ones(2, 4))})
    >>> views.merged()["w"].gradients()
    tensor([[3., 3., 3., 3.],
            [3., 3., 3., 3.]])
    """

    def __init__(self) -> None:
        self.pairs: dict[str, list[Use]] = {}
        self.totals: dict[str, Tensor] = {}
        self.rules: dict[str, str] = {}

    def add(self, uses: dict[str, Use]) -> None:
        """Take in one more view."""
        for name, use in uses.items():
            self.rules[name] = use.rule
            if isinstance(use, OuterUse) and use.left.shape[1] == 1:
                self.pairs.setdefault(name, []).append(use)
            elif name in self.totals:
                self.totals[name] += use.gradients()
            else:
                self.totals[name] = use.gradients().clone()

    def merged(self) -> dict[str, Use]:
        """One use for each weight, over all views."""
        found: dict[str, Use] = {}
        for name, rule in self.rules.items():
            parts = list(self.pairs.get(name, []))
            if name in self.totals:
                parts.append(DirectUse(self.totals[name], rule=rule))
            found[name] = merged(parts)
        return found
