"""A frame: each unit's gradient, seen from another origin and in other units, before it is clipped.

``(gradient − shift) · scale``, with a shift and a scale that do not depend on private data. Clipping comes
after it, so one unit still moves the sum by at most the clip norm, whatever the frame.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from saltflat.engine.uses import DirectUse, Use


@dataclass(frozen=True)
class Frame:
    """What is subtracted from each unit's gradient, and by what it is then multiplied; by parameter name.

    Both must come from public data or earlier releases. The gradients are formed one by one: the norm that
    decides about the clip is then that of the very numbers that are added up. Formulas for norms without the
    gradients would lose their digits where a gradient and the shift nearly cancel.

    References: DOPE-SGD (Nasr et al. 2023) shifts, AdaDPS (Li et al. 2022) scales.

    >>> import torch
    >>> frame = Frame(shift={"w": torch.tensor([1.0, 0.0])})
    >>> frame.applied({"w": nn.Parameter(torch.zeros(2))}, {"w": DirectUse(torch.ones(3, 2))}, 3)["w"].squared_norms()
    tensor([1., 1., 1.], dtype=torch.float64)
    """

    shift: Mapping[str, Tensor] | None = None
    scale: Mapping[str, Tensor] | None = None

    def applied(
        self, parameters: Mapping[str, nn.Parameter], uses: dict[str, Use], units: int
    ) -> dict[str, Use]:
        """The uses of every parameter, seen from here."""
        found: dict[str, Use] = {}
        for name, parameter in parameters.items():
            use = uses.get(name)
            if use is None and self.shift is None:
                continue  # nothing, whatever the scale
            if use is None:  # a weight that this batch did not touch has the gradient zero
                use = DirectUse(parameter.new_zeros(units, *parameter.shape), rule="unused")
            grads = use.gradients()
            if self.shift is not None:
                grads = grads - self.shift[name]
            if self.scale is not None:
                grads = grads * self.scale[name]
            found[name] = DirectUse(grads, rule=use.rule)
        return found
