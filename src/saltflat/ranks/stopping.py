"""How a rank ends when others were lost: the launcher sends SIGTERM, and the leader still has a record to close."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Terminated(KeyboardInterrupt):
    """SIGTERM, as `torchrun` sends it to the ranks that are left. Like Ctrl-C it ends a run that can go on."""


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Let SIGTERM raise `Terminated` inside the block, unless the program has a use of its own for it."""
    if not _in_charge() or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise Terminated("SIGTERM")

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is end:
            signal.signal(signal.SIGTERM, before)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Let neither Ctrl-C nor SIGTERM into the block: a launcher repeats them while the record is being closed."""
    if not _in_charge():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def already_ending() -> None:
    """From here on ignore both: the process is about to end by itself, with an exit code that says why."""
    if _in_charge():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)


def _in_charge() -> bool:
    """Only the main thread may say what signals do."""
    return threading.current_thread() is threading.main_thread()
