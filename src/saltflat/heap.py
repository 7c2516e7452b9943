"""How the C library keeps the memory of this process. No torch: this is said before torch has threads.

A private step asks for large blocks and frees them, again and again in all lanes. Left alone, the C library gives such
memory back to the system at once and fetches it again page by page; and threads other than the first get heaps of
their own, which are small and go back to the system whenever they are empty. Measured: a tenth of the time of a step,
on some networks a fifth.

Nothing here changes a result. ``SALTFLAT_KEEP_MEMORY=0`` leaves the C library as it is.
"""

from __future__ import annotations

import ctypes
import os
import platform
from functools import lru_cache

KEPT_BYTES = 2**30


@lru_cache(maxsize=1)
def keep_freed_memory() -> None:
    """Let freed memory stay with the process, up to 1 GiB, instead of being fetched page by page again."""
    if keeps_freed_memory():
        set_thresholds(KEPT_BYTES, KEPT_BYTES)


def keeps_freed_memory() -> bool:
    """Whether this C library can be told to keep memory, and nobody forbids it."""
    return platform.libc_ver()[0] == "glibc" and os.environ.get("SALTFLAT_KEEP_MEMORY") != "0"


def set_thresholds(kept: int, on_the_heap: int) -> None:
    """How many free bytes the heap keeps, and up to which size a block lies on it."""
    trim_threshold, mmap_threshold = -1, -3  # as in malloc.h
    library = ctypes.CDLL(None)
    library.mallopt(trim_threshold, kept)
    if not library.mallopt(
        mmap_threshold, on_the_heap
    ):  # older versions take no more than half a thread's heap
        library.mallopt(mmap_threshold, min(on_the_heap, 2**25))


def one_heap_for_all_threads() -> None:
    """Let all threads take memory from one heap: with one of its own, each would keep what another could use.

    It holds for threads that do not exist yet, so it is said when saltflat is imported. Measured on two lanes: half the
    memory, and no page faults where there had been tens of thousands a step. Tensors are large and asked for rarely.
    """
    if keeps_freed_memory():
        largest_number_of_heaps = -8  # as in malloc.h
        ctypes.CDLL(None).mallopt(largest_number_of_heaps, 1)
