"""Packed sequences: the rows of their data are time steps, sorted by time; examples are found by their lengths."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.utils._pytree import tree_map


def compute_seq_lengths(batch_sizes: Tensor) -> list[int]:
    """The length of each sequence, longest first, from how many sequences there are at each time.

    >>> compute_seq_lengths(torch.tensor([3, 2, 1, 1]))
    [4, 2, 1]
    """
    sizes = batch_sizes.tolist()
    return [sum(size > i for size in sizes) for i in range(sizes[0])]


def _gen_packed_data(
    minibatch_size: int, max_seq_length: int, input_dim: int, batch_first: bool, sorted_: bool | None = False
) -> PackedSequence:
    """Random sequences of random lengths, for tests."""
    lengths = [int(torch.randint(1, max_seq_length + 1, (1,))) for _ in range(minibatch_size)]
    if sorted_:
        lengths.sort(reverse=True)
    padded = torch.zeros(minibatch_size, max(lengths), input_dim)
    for row, length in zip(padded, lengths, strict=True):
        row[:length] = torch.randn(length, input_dim)
    return pack_padded_sequence(
        padded if batch_first else padded.transpose(0, 1),
        torch.tensor(lengths), batch_first=batch_first, enforce_sorted=bool(sorted_),
    )  # fmt: skip


def is_packed(value: Any) -> bool:
    """For `torch.utils._pytree`: a packed sequence is one value, and not a tuple of four."""
    return isinstance(value, PackedSequence)


class Padded:
    """The arguments of a call with its packed sequences padded, one row an example, and the way back.

    ``lengths`` travel with the rows, so that some examples of a batch can be run on their own.
    """

    def __init__(self, arguments: Any, batch_first: bool) -> None:
        self._batch_first = batch_first
        self._like: PackedSequence | None = None
        self.arguments = tree_map(self._padded, arguments, is_leaf=is_packed)

    @property
    def found(self) -> bool:
        """Whether there was a packed sequence."""
        return self._like is not None

    @property
    def order(self) -> Tensor | None:
        """The places of the examples, longest first, if they are packed in another order than they have."""
        return None if self._like is None else self._like.sorted_indices

    def _padded(self, value: Any) -> Any:
        if not is_packed(value):
            return value
        self._like = value
        rows, lengths = pad_packed_sequence(value, batch_first=self._batch_first)
        return _Sequences((rows, lengths if self._batch_first else lengths.unsqueeze(0)))

    def packed_again(self, arguments: Any) -> Any:
        """Arguments as the module expects them, of all examples or of some."""

        def again(value: Any) -> Any:
            if not isinstance(value, _Sequences):
                return value
            rows, lengths = value
            return pack_padded_sequence(
                rows, lengths.flatten().cpu(), batch_first=self._batch_first, enforce_sorted=False
            )

        return tree_map(again, arguments, is_leaf=lambda value: isinstance(value, _Sequences))

    def outputs(self, value: Any) -> Any:
        """Outputs with one row an example: what is packed is padded to the longest of the whole batch."""
        assert self._like is not None
        longest = len(self._like.batch_sizes)

        def padded(each: Any) -> Any:
            if not is_packed(each):
                return each
            # Rows first, wherever the module has them: a sequence of one step could not tell its dimensions apart.
            rows, _ = pad_packed_sequence(each, batch_first=True, total_length=longest)
            return _Outputs((rows,))

        return tree_map(padded, value, is_leaf=is_packed)

    def outputs_packed_again(self, value: Any) -> Any:
        """What the module would have returned."""
        like = self._like
        assert like is not None
        lengths = torch.tensor(compute_seq_lengths(like.batch_sizes))

        def again(each: Any) -> Any:
            if not isinstance(each, _Outputs):
                return each
            rows = each[0] if like.sorted_indices is None else each[0][like.sorted_indices]
            data = pack_padded_sequence(rows, lengths, batch_first=True).data
            return PackedSequence(data, like.batch_sizes, like.sorted_indices, like.unsorted_indices)

        return tree_map(again, value, is_leaf=lambda each: isinstance(each, _Outputs))


class _Sequences(tuple[Tensor, ...]):
    """Padded rows and their lengths, where a packed sequence was."""


class _Outputs(tuple[Tensor, ...]):
    """Padded rows, where a packed sequence will be."""


def _leaves(value: tuple[Tensor, ...]) -> tuple[list[Any], None]:
    return list(value), None


torch.utils._pytree.register_pytree_node(_Sequences, _leaves, lambda leaves, _: _Sequences(leaves))
torch.utils._pytree.register_pytree_node(_Outputs, _leaves, lambda leaves, _: _Outputs(leaves))
