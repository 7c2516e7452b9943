"""Trainable parameters that no gradient reaches: noise alone would move them, so that they look trained."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from torch import nn

SHOWN = 6


@dataclass
class UseCheck:
    """Watches which parameters the first batch used, and names the others before its release.

    What counts is whether a backward pass met a use of the parameter, and not what gradient it found: a gradient
    of zero is a use. So the answer follows from how model and loss are built, not from the numbers in a batch; a model
    that chooses its layers by the values in a row is the exception.
    """

    names: dict[int, str]  # by the id of the parameter
    unused: tuple[str, ...] | None = None  # not known before the first batch that has rows
    _used: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, module: nn.Module) -> UseCheck:
        """For the parameters of a module, by their names there."""
        return cls({id(p): name for name, p in module.named_parameters()})

    def saw(self, used: Iterable[int]) -> None:
        """Note the parameters that a batch, or a part of one, used."""
        if self.unused is None:
            self._used.update(used)

    def before_release(self, trained: Sequence[nn.Parameter]) -> None:
        """Warn of those that were not used, once."""
        if self.unused is not None or not self._used:  # an empty batch uses nothing
            return
        self.unused = tuple(self.names.get(id(p), "?") for p in trained if id(p) not in self._used)
        if self.unused:
            warnings.warn(
                f"No gradient reaches {self.told()}: the loss of the first batch does not depend on them, or detach() "
                "or no_grad() is in the way. Noise alone will move them. "
                "Freeze them with requires_grad_(False) before make_private, or mend the model.",
                UserWarning,
                stacklevel=4,
            )  # fmt: skip

    def told(self) -> str:
        """The names, as part of a sentence."""
        names = self.unused or ()
        more = len(names) - SHOWN
        return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
