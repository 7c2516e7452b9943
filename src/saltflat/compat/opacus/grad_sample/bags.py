"""Calls of models with `torch.nn.EmbeddingBag`: all tokens in one row, and where each example's begin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

Run = Callable[..., Any]


def by_example(module: nn.Module, run: Run, args: tuple[Any, ...]) -> tuple[Run, tuple[Any, ...]]:
    """The same call with one row an example: its tokens, padded, and how many they are.

    Calls of other models, and of bags that have a row each, stay as they are.
    """
    if not any(isinstance(layer, nn.EmbeddingBag) for layer in module.modules()):
        return run, args
    for at in range(len(args) - 1):
        if _are_bags(args[at], args[at + 1]):
            break
    else:
        return run, args
    tokens, offsets = args[at], args[at + 1]
    lengths = torch.diff(offsets, append=offsets.new_tensor([len(tokens)]))
    rows = pad_sequence(list(tokens.split(lengths.tolist())), batch_first=True)

    def joined(model: nn.Module, *given: Any, **kwargs: Any) -> Any:
        padded, counts = given[at], given[at + 1]
        own = padded[torch.arange(padded.shape[1], device=padded.device) < counts.unsqueeze(1)]
        starts = counts.cumsum(0) - counts
        return run(model, *given[:at], own, starts, *given[at + 2 :], **kwargs)

    return joined, (*args[:at], rows, lengths, *args[at + 2 :])


def _are_bags(tokens: Any, offsets: Any) -> bool:
    if not all(
        isinstance(t, Tensor) and t.dim() == 1 and not t.is_floating_point() for t in (tokens, offsets)
    ):
        return False
    starts = offsets.tolist()
    return bool(starts) and starts[0] == 0 and sorted(starts) == starts and starts[-1] <= len(tokens)
