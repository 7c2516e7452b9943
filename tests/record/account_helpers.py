"""Processes that take from an account until they are refused, and one that dies in the middle of a write."""

from __future__ import annotations

import os
import signal

from saltflat.accounting import SampledGaussian
from saltflat.errors import OverdrawnError
from saltflat.record.account import Account
from saltflat.record.balance import Charge

CHARGE = Charge((SampledGaussian(20.0, 1.0, 1),), 0.2, 1e-7, "add-remove", "example")


def dies_at(call: int) -> None:
    """Kill this process before its ``call``-th system call that changes a file; half of a write is done."""
    left = [call]

    def counted(name: str) -> None:
        real = getattr(os, name)

        def called(*arguments: object, **named: object) -> object:
            left[0] -= 1
            if left[0] == 0:
                if name == "write":
                    real(arguments[0], bytes(arguments[1])[: len(bytes(arguments[1])) // 2])  # type: ignore[call-overload]
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **named)

        setattr(os, name, called)

    for name in ("write", "fsync", "replace", "ftruncate"):
        counted(name)


def taken(account: Account) -> int:
    """Take until there is no more; returns how often it was granted."""
    granted = 0
    while True:
        try:
            account.reserve(CHARGE)
        except OverdrawnError:
            return granted
        granted += 1
