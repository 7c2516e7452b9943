"""A few loops in C, compiled on this machine at their first use, where there is a compiler.

Per-unit gradients of depthwise kernels, and the moments of standardised ones, are sums that torch can only form
through large temporaries; and its group normalisation and max pooling are slow where the channels are innermost:
the latter keeps eight bytes for each output, and writes its gradient twice. `native.c` does each in one or two
passes: measured, five to fifteen times as fast on a CPU. `winograd.c` has the 3×3 convolutions
(`saltflat.engine.winograd`), `narrow.c` the linear layer on large fixed features, `gram.c` the norms of sequences, and
`activations.c` SELU, ELU and tanh. Without a compiler (or with ``SALTFLAT_NATIVE=0``) the same numbers come from torch
operations, a little later.

The library is kept in the cache folder, readable and writable by its owner alone, under a name that tells
source, compiler and processor.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

SOURCES = [
    Path(__file__).with_name(f"{name}.c")
    for name in ("native", "winograd", "threads", "narrow", "gram", "activations")
]
HEADERS = [Path(__file__).with_name(name) for name in ("threads.h", "vectors.h")]
FLAGS = ["-O3", "-march=native", "-fno-math-errno", "-shared", "-fPIC"]
Sizes = tuple[int, ...]
LOOPS = (
    "depthwise", "moments", "group_norm", "group_norm_backward", "max_pool", "max_pool_backward",
    "winograd_kernel", "winograd", "winograd_gradients", "use_threads", "few_outputs", "few_sums",
    "group_norm_by_rows", "gram_norms", "elu", "elu_backward", "tanh", "tanh_backward",
)  # fmt: skip
SECONDS = 60  # more than any compiler needs, so that a broken one does not hold a training


def available() -> bool:
    """Whether the compiled loops are there; compiles them when asked for the first time."""
    return _library() is not None


def suits(tensor: Tensor) -> bool:
    """Whether there is a loop for such numbers: float32 in ordinary memory."""
    return tensor.dtype == torch.float32 and tensor.is_cpu and available()


def fits(*tensors: Tensor) -> bool:
    """Whether the loops take these tensors as they lie."""
    return all(suits(t) and t.is_contiguous() for t in tensors)


def depthwise(
    x: Tensor,
    grad: Tensor,
    out: Tensor,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
) -> None:
    """Write into ``out`` (rows x kernel x channels) the kernel gradients of each row.

    ``x`` is rows x height x width x channels, ``grad`` the same with the output's height and width.
    """
    rows, height, width, channels = x.shape
    loops().saltflat_depthwise(
        x.data_ptr(), grad.data_ptr(), out.data_ptr(), rows, height, width, *grad.shape[1:3], channels,
        *out.shape[1:3], *stride, *padding, *dilation,
    )  # fmt: skip


def moments(grads: Tensor, along: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For units x channels x size: the sums over the last dimension of g, of g · along, and of g²."""
    results = grads.new_empty(3, *grads.shape[:2])
    places = [result.data_ptr() for result in results]
    loops().saltflat_moments(grads.data_ptr(), along.data_ptr(), *places, *grads.shape)
    return results[0], results[1], results[2]


def group_norm(
    x: Tensor, out: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """Of rows x ... x channels: write the normalised rows, return mean and inverse deviation (rows x groups)."""
    rows, channels = x.shape[0], x.shape[-1]
    mean, rstd = x.new_empty(rows, groups), x.new_empty(rows, groups)
    scratch, totals = x.new_empty(3 * channels), x.new_empty(channels, dtype=torch.float64)
    loops().saltflat_group_norm(
        x.data_ptr(), address_of(weight), address_of(bias), out.data_ptr(), mean.data_ptr(), rstd.data_ptr(),
        scratch.data_ptr(), totals.data_ptr(), rows, x[0, ..., 0].numel(), channels, groups, eps,
    )  # fmt: skip
    return mean, rstd


def group_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, rstd: Tensor, needs_input: bool
) -> tuple[Tensor | None, Tensor, Tensor]:
    """The gradients of x (if it needs one), and of weight and bias row by row (rows x channels)."""
    rows, channels = x.shape[0], x.shape[-1]
    back = torch.empty_like(x) if needs_input else None
    scales, shifts = x.new_empty(rows, channels), x.new_empty(rows, channels)
    scratch, totals = x.new_empty(4 * channels), x.new_empty(2 * channels, dtype=torch.float64)
    loops().saltflat_group_norm_backward(
        grad.data_ptr(), x.data_ptr(), address_of(weight), mean.data_ptr(), rstd.data_ptr(), address_of(back),
        scales.data_ptr(), shifts.data_ptr(), scratch.data_ptr(), totals.data_ptr(),
        rows, x[0, ..., 0].numel(), channels, mean.shape[1],
    )  # fmt: skip
    return back, scales, shifts


def max_pool(x: Tensor, out: Tensor, kernel: Sizes, stride: Sizes, padding: Sizes) -> Tensor:
    """Of rows x height x width x channels: write the largest numbers, return which of its window each was."""
    taps = torch.empty(out.shape, dtype=torch.uint8)
    loops().saltflat_max_pool(
        x.data_ptr(), out.data_ptr(), taps.data_ptr(), *x.shape[:3], *out.shape[1:3], x.shape[3],
        *kernel, *stride, *padding,
    )  # fmt: skip
    return taps


def max_pool_backward(
    grad: Tensor, taps: Tensor, back: Tensor, kernel: Sizes, stride: Sizes, padding: Sizes
) -> None:
    """Write into ``back`` the gradients of the input, from those of the output and what `max_pool` returned."""
    loops().saltflat_max_pool_backward(
        grad.data_ptr(), taps.data_ptr(), back.data_ptr(), *back.shape[:3], *grad.shape[1:3], back.shape[3],
        *kernel, *stride, *padding,
    )  # fmt: skip


def few_outputs(x: Tensor, weight: Tensor, bias: Tensor | None, shares: int) -> tuple[Tensor, Tensor]:
    """``x @ weight.T + bias`` for a weight with few rows, and the squared length of each row of x."""
    (rows, wide), few = x.shape, weight.shape[0]
    out, squares = x.new_empty(rows, few), x.new_empty(rows, dtype=torch.float64)
    loops().saltflat_few_outputs(
        x.data_ptr(), weight.data_ptr(), address_of(bias), out.data_ptr(), squares.data_ptr(), rows, wide, few,
        shares,
    )  # fmt: skip
    return out, squares


def few_sums(left: Tensor, factors: Tensor, x: Tensor, shares: int) -> Tensor:
    """``left.T @ x`` with row i scaled by ``factors[i]``, for a left side with few columns."""
    (rows, wide), few = x.shape, left.shape[1]
    sums = x.new_empty(shares, few, wide)
    loops().saltflat_few_sums(
        left.data_ptr(), factors.data_ptr(), x.data_ptr(), sums.data_ptr(), rows, wide, few, shares
    )
    return sums[0]


def group_norm_by_rows(
    x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float, shares: int
) -> Tensor:
    """Of rows x channels x ...: the normalised rows, in the order in which they lie."""
    out, (rows, channels) = torch.empty_like(x), x.shape[:2]
    loops().saltflat_group_norm_by_rows(
        x.data_ptr(), address_of(weight), address_of(bias), out.data_ptr(), rows, channels, x[0, 0].numel(),
        groups, shares, eps,
    )  # fmt: skip
    return out


def gram_norms(left: Tensor, right: Tensor, shares: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of units x T x rows and units x T x columns, what `saltflat.engine.ghost.gram_norms` says of Gram matrices."""
    (units, length, rows), columns = left.shape, right.shape[2]
    results = left.new_empty(3, units)
    loops().saltflat_gram_norms(
        left.data_ptr(), right.data_ptr(), *(result.data_ptr() for result in results), units, length, rows, columns,
        shares,
    )  # fmt: skip
    return results[0], results[1], results[2]


def is_dense(x: Tensor) -> bool:
    """Whether there is a loop for such numbers, and they lie in a row, in either layout."""
    return suits(x) and (x.is_contiguous() or x.is_contiguous(memory_format=torch.channels_last))


def laid_like(tensor: Tensor, other: Tensor) -> Tensor:
    """A tensor of the same shape in the layout of another one, which is dense."""
    layout = torch.contiguous_format if other.is_contiguous() else torch.channels_last
    return tensor.contiguous(memory_format=layout)


def elu(x: Tensor, above: float, below: float) -> Tensor:
    """``above · x`` above zero and ``below · (exp(x) − 1)`` up to it, for dense numbers."""
    out = torch.empty_like(x)
    loops().saltflat_elu(x.data_ptr(), out.data_ptr(), x.numel(), above, below)
    return out


def elu_backward(grad: Tensor, out: Tensor, above: float, below: float) -> Tensor:
    """The gradient of what went into `elu`, from what came out; both lie alike."""
    back = torch.empty_like(out)
    loops().saltflat_elu_backward(grad.data_ptr(), out.data_ptr(), back.data_ptr(), out.numel(), above, below)
    return back


def tanh(x: Tensor) -> Tensor:
    """The hyperbolic tangent of dense numbers."""
    out = torch.empty_like(x)
    loops().saltflat_tanh(x.data_ptr(), out.data_ptr(), x.numel())
    return out


def tanh_backward(grad: Tensor, out: Tensor) -> Tensor:
    """The gradient of what went into `tanh`, from what came out; both lie alike."""
    back = torch.empty_like(out)
    loops().saltflat_tanh_backward(grad.data_ptr(), out.data_ptr(), back.data_ptr(), out.numel())
    return back


def address_of(tensor: Tensor | None) -> int | None:
    """Where its numbers lie; None where C takes NULL."""
    return None if tensor is None else tensor.data_ptr()


def loops() -> ctypes.CDLL:
    """The compiled library, for who has asked `suits`."""
    library = _library()
    assert library is not None
    return library


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL | None:
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if os.environ.get("SALTFLAT_NATIVE") == "0" or compiler is None or platform.system() == "Windows":
        return None
    try:
        library = ctypes.CDLL(str(_compiled(compiler)))
    except (
        OSError,
        RuntimeError,
        subprocess.SubprocessError,
    ):  # no home, no space, no such flag: torch does it too
        return None
    pointer, number = ctypes.c_void_p, ctypes.c_ssize_t
    library.saltflat_depthwise.argtypes = [pointer] * 3 + [number] * 14
    library.saltflat_moments.argtypes = [pointer] * 5 + [number] * 3
    library.saltflat_group_norm.argtypes = [pointer] * 8 + [number] * 4 + [ctypes.c_double]
    library.saltflat_group_norm_backward.argtypes = [pointer] * 10 + [number] * 4
    library.saltflat_max_pool.argtypes = [pointer] * 3 + [number] * 12
    library.saltflat_max_pool_backward.argtypes = [pointer] * 3 + [number] * 12
    library.saltflat_winograd_kernel.argtypes = [pointer] * 2 + [number] * 3
    library.saltflat_winograd.argtypes = [pointer] * 5 + [number] * 7
    library.saltflat_winograd_gradients.argtypes = [pointer] * 6 + [number] * 7
    library.saltflat_use_threads.argtypes = [pointer] * 2
    library.saltflat_few_outputs.argtypes = [pointer] * 5 + [number] * 4
    library.saltflat_few_sums.argtypes = [pointer] * 4 + [number] * 4
    library.saltflat_group_norm_by_rows.argtypes = [pointer] * 4 + [number] * 5 + [ctypes.c_double]
    library.saltflat_gram_norms.argtypes = [pointer] * 5 + [number] * 5
    real = ctypes.c_float
    library.saltflat_elu.argtypes = [pointer] * 2 + [number] + [real] * 2
    library.saltflat_elu_backward.argtypes = [pointer] * 3 + [number] + [real] * 2
    library.saltflat_tanh.argtypes = [pointer] * 2 + [number]
    library.saltflat_tanh_backward.argtypes = [pointer] * 3 + [number]
    for name in LOOPS:
        getattr(library, f"saltflat_{name}").restype = None
    library.saltflat_use_threads(*_threads_of_torch())
    return library


def _threads_of_torch() -> tuple[ctypes.c_void_p | None, ctypes.c_void_p | None]:
    """Where the OpenMP library that torch brought opens a parallel region, and where it numbers its threads."""
    known = ctypes.CDLL(None)
    try:
        region, own_number = known.GOMP_parallel, known.omp_get_thread_num
    except AttributeError:  # another library, or none: one thread does it
        return None, None
    return ctypes.cast(region, ctypes.c_void_p), ctypes.cast(own_number, ctypes.c_void_p)


def _compiled(compiler: str) -> Path:
    """The library for this source, compiler and processor: from the cache, or compiled into it."""
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True, timeout=SECONDS).stdout
    told = [
        *(source.read_bytes() for source in [*SOURCES, *HEADERS]),
        version,
        processor().encode(),
        " ".join(FLAGS).encode(),
    ]
    folder = _cache_folder()
    target = folder / f"native-{hashlib.sha256(b'|'.join(told)).hexdigest()[:24]}.so"
    if target.exists() and target.stat().st_uid == os.getuid():
        return target
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        built = Path(scratch) / "native.so"
        command = [compiler, *FLAGS, *map(str, SOURCES), "-o", str(built), "-lm"]
        subprocess.run(command, capture_output=True, check=True, timeout=SECONDS)
        built.replace(target)  # whole or not at all, also when two processes compile
    return target


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(base) / "saltflat" / "native"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if folder.stat().st_uid != os.getuid() or folder.stat().st_mode & 0o022:
        raise OSError("the cache folder can be written by others: what lies there is not to be run")
    return folder


def processor() -> str:
    """What ``-march=native`` depends on: a home directory may be shared by unlike machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() + platform.machine()
    return "".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
