"""One call of a model, as values: its arguments, some rows of it, and what is known about calls of its form.

`saltflat.engine.passes` runs such a call forward and backward.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from saltflat.engine.batch import Facts
from saltflat.engine.uses import Use

Uses = dict[int, Use]
"""By the id of the parameter."""

Back = tuple[Uses, list[Tensor | None]]
"""What a backward pass says: the uses of the weights, and the gradients at the inputs that ask for one."""


@dataclass
class Known:
    """What was learned about a model on one form of input."""

    facts: Facts = field(default_factory=Facts)
    rowwise: bool | None = None  # every output has the rows of the input, in their order
    together: bool = False  # units that are run apart may be shown the outputs of one run of all of them


@dataclass(frozen=True)
class Call:
    """A call of a model: its arguments as leaves, and which of them hold one row a unit.

    ``run`` calls the model, or a lane's copy of it. ``dim`` is where the units are.
    """

    model: nn.Module
    run: Callable[..., Any]
    leaves: list[Any]
    spec: TreeSpec
    units: int
    dim: int = 0

    @staticmethod
    def of(
        model: nn.Module, run: Callable[..., Any], args: Any, kwargs: dict[str, Any], dim: int = 0
    ) -> Call | None:
        """The call, or None where no argument holds rows."""
        found, spec = tree_flatten((args, kwargs))
        sizes = [t.shape[dim] for t in found if isinstance(t, Tensor) and t.dim() > dim]
        if not sizes:
            return None
        return Call(model, run, found, spec, sizes[0], dim)

    @property
    def rows_at(self) -> list[int]:
        """The leaves that hold one row a unit; others are the same for all."""
        found = [(i, t) for i, t in enumerate(self.leaves) if isinstance(t, Tensor) and t.dim() > self.dim]
        return [i for i, t in found if t.shape[self.dim] == self.units]

    def filled(self, model: nn.Module, values: dict[int, Tensor]) -> Any:
        """Call the model with some leaves replaced."""
        leaves = [values.get(i, leaf) for i, leaf in enumerate(self.leaves)]
        args, kwargs = tree_unflatten(leaves, self.spec)
        return self.run(model, *args, **kwargs)

    def some(self, part: slice) -> dict[int, Tensor]:
        """The rows of some units, as tensors of their own; gradients are asked at those that ask for one."""
        found = {}
        for i in self.rows_at:
            leaf = self.leaves[i].detach().narrow(self.dim, part.start, part.stop - part.start)
            found[i] = leaf.requires_grad_(self.leaves[i].requires_grad)
        return found

    def form(self) -> Any:
        """What the facts about a model depend on, sizes apart."""
        kinds = tuple((i, self.leaves[i].dim(), self.leaves[i].dtype) for i in self.rows_at)
        return kinds, tuple(m.training for m in self.model.modules()), self.spec

    def sizes(self) -> Any:
        """The sizes of the leaves that hold rows, the number of units apart."""
        return tuple(tuple(self.leaves[i].shape[1:]) for i in self.rows_at)


@dataclass
class Part:
    """Some rows of a call: what came out, and how to go back."""

    rows: slice
    spec: TreeSpec
    everything: list[Any]  # the leaves of the output, tensors or not
    back: Callable[[list[Tensor], list[Tensor], bool], Back | None]
    shown: list[Any] | None = None  # what the caller sees in place of ``everything``: the same up to rounding

    @property
    def units(self) -> int:
        return self.rows.stop - self.rows.start

    @property
    def outputs(self) -> list[Tensor]:
        """Those leaves of the output from which one can go back."""
        return [t for t in self.everything if asks(t)]


def asks(value: Any) -> bool:
    """Whether something asks for a gradient."""
    return isinstance(value, Tensor) and value.requires_grad
