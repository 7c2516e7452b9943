"""What every rule is written with: the registry that the tape looks into, and a backward pass it need not see."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Rule = Callable[..., Any]
RULES: dict[Any, Rule] = {}
FASTER: dict[Any, Rule] = {}


def rule(*functions: Any, faster: bool = False) -> Callable[[Rule], Rule]:
    """Register how these torch functions use their weights.

    A rule is called as ``rule(tape, function, args, kwargs)`` and returns the operation's result, or
    ``NotImplemented`` to leave the case to the fallback. One that is ``faster`` than the function itself is
    called without weights too.
    """

    def register(function: Rule) -> Rule:
        for known in (RULES, FASTER) if faster else (RULES,):
            known.update(dict.fromkeys(functions, function))
        return function

    return register


def unwatched(backward: Callable[..., Any]) -> Callable[..., Any]:
    """The arithmetic of a rule's backward pass, which the tape need not see: it watches there for checkpoints,
    and a call for every operation would take its time.

    What was saved is fetched before: in a checkpoint, that is what runs its part forward again, and the tape must
    see it.
    """

    @functools.wraps(backward)
    def quietly(ctx: Any, *grads: Any) -> Any:
        fetched = _Fetched(ctx, ctx.saved_tensors)
        with torch._C.DisableTorchFunction():
            return backward(fetched, *grads)

    return quietly


class _Fetched:
    """The context of a backward pass, with its saved tensors at hand: they can be fetched once only."""

    __slots__ = ("ctx", "saved_tensors")

    def __init__(self, ctx: Any, saved: tuple[Tensor, ...]) -> None:
        object.__setattr__(self, "ctx", ctx)
        object.__setattr__(self, "saved_tensors", saved)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ctx, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.ctx, name, value)
