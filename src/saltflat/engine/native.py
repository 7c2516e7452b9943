"""A few loops in C, compiled on this machine at their first use, where there is a compiler.

Per-unit gradients of depthwise kernels, and the moments of standardised ones, are sums that torch can only form
through large temporaries; and its group normalisation and max pooling are slow where the channels are innermost:
the latter keeps eight bytes for each output, and writes its gradient twice. `native.c` does each in one or two
passes: measured, five to fifteen times as fast on a CPU. `winograd.c` has the 3×3 convolutions
(`saltflat.engine.winograd`). Without a compiler (or with ``SALTFLAT_NATIVE=0``) the same numbers come from torch
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

SOURCES = [Path(__file__).with_name(name) for name in ("native.c", "winograd.c")]
FLAGS = ["-O3", "-march=native", "-fno-math-errno", "-shared", "-fPIC"]
Sizes = tuple[int, ...]
LOOPS = (
    "depthwise", "moments", "group_norm", "group_norm_backward", "max_pool", "max_pool_backward",
    "winograd_kernel", "winograd", "winograd_gradients",
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
    except (OSError, subprocess.SubprocessError):  # no folder, no space, no such flag: torch does it as well
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
    for name in LOOPS:
        getattr(library, f"saltflat_{name}").restype = None
    return library


def _compiled(compiler: str) -> Path:
    """The library for this source, compiler and processor: from the cache, or compiled into it."""
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True, timeout=SECONDS).stdout
    told = [
        *(source.read_bytes() for source in SOURCES),
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
