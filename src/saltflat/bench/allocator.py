"""Each engine is timed with its own way of keeping memory.

saltflat tells the C library to keep freed memory (`saltflat.engine.lanes.keep_freed_memory`), and that would speed up
whatever else runs in the same process. A process without saltflat does not have that, so the others are timed as
the C library is when nobody has told it anything.
"""

from __future__ import annotations

from saltflat.engine import lanes

# Where the C library's thresholds come to rest by themselves once large blocks have been freed (malloc.h).
LARGEST_ON_THE_HEAP = 32 * 2**20
LARGEST_KEPT = 2 * LARGEST_ON_THE_HEAP


def as_without_saltflat() -> None:
    """Give freed memory back from now on, as soon as something is freed."""
    if lanes.keeps_freed_memory():
        lanes.set_thresholds(LARGEST_KEPT, LARGEST_ON_THE_HEAP)


def as_with_saltflat() -> None:
    """Keep freed memory again."""
    if lanes.keeps_freed_memory():
        lanes.set_thresholds(lanes.KEPT_BYTES, lanes.KEPT_BYTES)
