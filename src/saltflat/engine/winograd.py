"""3×3 convolutions with fewer multiplications: outputs, gradients of the inputs, and gradients of the kernel.

Of a 3×3 kernel with stride 1, a 2×2 tile of the output takes 36 multiplications by the definition and 16 after
Winograd; the gradient of the kernel, of one row or of many, is the transposed statement and saves as much.
`winograd.c` explains and does it, with the channels innermost. Everything is float32; rounding is no larger than that
of torch's own convolutions (measured: 0.6 to 0.9 of it), and nothing of one row reaches another.

Reference: Lavin & Gray, *Fast algorithms for convolutional neural networks*, 2016.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from saltflat.engine import lanes, native
from saltflat.engine.workspace import Workspace

PANEL = 16  # channels come in such panels
POINTS = 16
# With fewer channels on either side, transforming a tile costs more than its products save.
FEW_CHANNELS = 32
# The points of a block of tiles, before and behind the product, are to stay in the second cache: 1 MiB and less.
BLOCK_NUMBERS = 1 << 17
MOST_TILES, LEAST_TILES = 48, 24
GRADIENT_TILES = 64  # of a block: sums over tiles stay in registers for as long
SAVED = 2.25  # multiplications by the definition, over those that are left


def suits(x: Tensor, outputs: int) -> bool:
    """Whether maps with so many channels, to as many, can be taken; the kernel is known to be plain 3×3."""
    inputs = x.shape[1]
    return inputs % PANEL == 0 and outputs % PANEL == 0 and native.suits(x) and 0 not in x.shape


def pays(inputs: int, outputs: int) -> bool:
    """Whether outputs are faster so, too; gradients of the kernel are with any number of channels."""
    return min(inputs, outputs) >= FEW_CHANNELS


def kernel_points(weight: Tensor, back: bool) -> Tensor:
    """A kernel in the form that `convolve` takes; ``back`` for the gradients of the inputs."""
    outputs, inputs = weight.shape[:2]
    points = weight.new_empty(POINTS * _apart(outputs * inputs))
    last = weight.movedim(1, -1).contiguous()
    native.loops().saltflat_winograd_kernel(last.data_ptr(), points.data_ptr(), outputs, inputs, int(back))
    return points


def convolve(
    x: Tensor, points: Tensor, bias: Tensor | None, outputs: int, padding: int, workspace: Workspace
) -> Tensor:
    """Rows x outputs x space, from rows x channels x space."""
    x = x.contiguous(memory_format=torch.channels_last)
    rows, inputs, height, width = x.shape
    shape = rows, outputs, height + 2 * padding - 2, width + 2 * padding - 2
    out = torch.empty(shape, dtype=x.dtype, memory_format=torch.channels_last)
    bias = None if bias is None else bias.contiguous()
    fitting = BLOCK_NUMBERS // (POINTS * (inputs + outputs))
    block = max(min(fitting, MOST_TILES), LEAST_TILES)
    scratch = _apart(block * inputs) + _apart(block * outputs)

    def share(start: int, stop: int, place: Tensor) -> None:
        native.loops().saltflat_winograd(
            x[start:].data_ptr(), points.data_ptr(), native.address_of(bias), out[start:].data_ptr(),
            place.data_ptr(), stop - start, height, width, inputs, outputs, padding, block,
        )  # fmt: skip

    _in_shares(rows, share, POINTS * scratch, x, workspace)
    return out


def gradients(x: Tensor, grad: Tensor, padding: int, workspace: Workspace) -> tuple[Tensor, Tensor]:
    """The kernel's gradient of each row, rows x outputs x 3 x 3 x inputs, and their squared norms."""
    rows, outputs, inputs = x.shape[0], grad.shape[1], x.shape[1]
    found, squared = grad.new_empty(rows, outputs, 3, 3, inputs), grad.new_empty(rows)
    _kernel_gradients(x, grad, None, found, squared, padding, workspace)
    return found, squared


def weighted_sum(x: Tensor, grad: Tensor, factors: Tensor, padding: int) -> Tensor:
    """The kernel's gradient, outputs x inputs x 3 x 3, of all rows together, each times its factor."""
    shares = _shares(x.shape[0])
    sums = grad.new_empty(shares, grad.shape[1], 3, 3, x.shape[1])
    _kernel_gradients(x, grad, factors.to(grad.dtype).contiguous(), sums, None, padding, Workspace())
    return (sums[0] if shares == 1 else sums.sum(0)).movedim(-1, 1)


def _kernel_gradients(
    x: Tensor,
    grad: Tensor,
    factors: Tensor | None,
    found: Tensor,
    squared: Tensor | None,
    padding: int,
    workspace: Workspace,
) -> None:
    x, grad = (side.contiguous(memory_format=torch.channels_last) for side in (x, grad))
    rows, inputs, height, width = x.shape
    outputs, block = grad.shape[1], GRADIENT_TILES
    scratch = _apart(block * inputs) + _apart(block * outputs) + _apart(inputs * outputs)
    starts = _starts(rows)

    def share(start: int, stop: int, place: Tensor) -> None:
        own = found[start if factors is None else starts.index(start) :]
        rest = [None if side is None else side[start:] for side in (factors, squared)]
        native.loops().saltflat_winograd_gradients(
            x[start:].data_ptr(), grad[start:].data_ptr(), native.address_of(rest[0]), own.data_ptr(),
            native.address_of(rest[1]), place.data_ptr(), stop - start, height, width, inputs, outputs, padding, block,
        )  # fmt: skip

    _in_shares(rows, share, POINTS * scratch, x, workspace)


def _apart(numbers: int) -> int:
    """From one point to the next, as in `winograd.c`."""
    return (numbers // 16 | 1) * 16


def _shares(rows: int) -> int:
    """One for every thread that torch would use here; in a lane that is one."""
    return max(min(torch.get_num_threads(), rows), 1)


def _starts(rows: int) -> list[int]:
    shares = _shares(rows)
    return [rows * number // shares for number in range(shares)]


def _in_shares(
    rows: int, share: Callable[[int, int, Tensor], None], numbers: int, like: Tensor, workspace: Workspace
) -> None:
    """Deal the rows out to the threads, each with as many numbers of scratch memory."""
    starts = _starts(rows)
    places = workspace.scratch("winograd", (len(starts), numbers), like)
    parts = [partial(share, *part) for part in zip(starts, [*starts[1:], rows], places)]
    if len(parts) == 1:
        parts[0]()
    else:
        lanes.run(parts)
