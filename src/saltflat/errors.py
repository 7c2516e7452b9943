"""What saltflat says when it cannot go on: one error a fault, with the cure in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


class SaltflatError(Exception):
    """Every error that saltflat raises on purpose. The command line shows it without a traceback."""


class InputError(SaltflatError, ValueError):
    """A bad argument: its name, its value, what was expected and what to do next.

    >>> print(InputError("batch_size", 70000, "1 <= batch_size <= population",
    ...                  problem="is larger than population=60000",
    ...                  cure="A batch of the whole data set is batch_size=60000."))
    batch_size=70000 is larger than population=60000.
      Expected 1 <= batch_size <= population. A batch of the whole data set is batch_size=60000.
    """

    def __init__(
        self, argument: str, value: object, expected: str, *, problem: str = "is not valid", cure: str = ""
    ) -> None:
        self.argument, self.value, self.expected = argument, value, expected
        self.problem, self.cure = problem, cure
        shown = value if isinstance(value, str | int | float | bool | None) else type(value).__name__
        text = repr(shown) if isinstance(shown, str) else str(shown)
        if len(text) > 120:
            text = text[:117] + "..."
        subject = argument if value is None and problem.startswith("is missing") else f"{argument}={text}"
        super().__init__(f"{subject} {problem}.\n  Expected {expected}. {cure}".rstrip())


def newer_format(what: str, version: object, known: int) -> InputError:
    """The error of a file or message whose format is not known here.

    >>> print(newer_format("certificate", 9, 2))
    certificate=9 is the format of this certificate.
      Expected a certificate of format 2 or older. Update saltflat.
    """
    return InputError(
        what, version, f"a {what} of format {known} or older",
        problem=f"is the format of this {what}", cure="Update saltflat.",
    )  # fmt: skip


class RefusedError(SaltflatError, ValueError):
    """A model, data set or request that cannot be made private as it is. The message names the cure."""

    def __init__(self, what: str, why: str, cure: str) -> None:
        self.what, self.why, self.cure = what, why, cure
        super().__init__(f"{what} cannot be trained privately: {why}\n  {cure}")


class OverdrawnError(SaltflatError):
    """A release or a run that the budget does not cover. Nothing was spent; the message has the numbers."""


class LostRankError(SaltflatError):
    """The ranks of a run cannot go on together: one was lost, or could not take part. The run can be resumed."""


class MissingDependencyError(SaltflatError, ImportError):
    """An optional package is needed and not installed.

    >>> print(MissingDependencyError("pyarrow", "reading Parquet files", "tables"))
    reading Parquet files needs the package pyarrow, which is not installed.
      Install it with: pip install 'saltflat[tables]'
    """

    def __init__(self, package: str, purpose: str, extra: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package}, which is not installed.\n"
            f"  Install it with: pip install 'saltflat[{extra}]'"
        )


def pyplot_for(purpose: str) -> Any:
    """matplotlib's pyplot, set to draw into files; without matplotlib, a sentence that says what needs it."""
    try:
        import matplotlib

        matplotlib.use("agg")
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise MissingDependencyError("matplotlib", purpose, "plot") from error
    return plt


class PrivacyWarning(UserWarning):
    """Something that weakens or blurs the guarantee, and that the caller may still want."""


def check_positive(argument: str, value: float) -> None:
    """Refuse anything but a finite number above zero."""
    if not is_number(value) or not 0 < value < float("inf"):
        raise InputError(argument, value, f"a finite {argument} > 0")


def check_not_negative(argument: str, value: float, cure: str = "") -> None:
    """Refuse anything but a finite number of at least zero."""
    if not is_number(value) or not 0 <= value < float("inf"):
        raise InputError(argument, value, f"a finite {argument} >= 0", cure=cure)


def is_number(value: object) -> bool:
    """Whether this is a real number: not a truth value, not text, not NaN.

    >>> is_number(0.5), is_number(True), is_number("0.5"), is_number(float("nan"))
    (True, False, False, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def check_count(argument: str, value: int, least: int = 1, cure: str = "") -> None:
    """Refuse anything but a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(argument, value, f"a whole number {argument} >= {least}", cure=cure)


def check_share(
    argument: str, value: float, *, zero: bool = False, one: bool = False, what: str = "", cure: str = ""
) -> None:
    """Refuse anything but a number between 0 and 1; the ends belong to it where ``zero`` and ``one`` say so."""
    if not is_number(value) or not (0 < value < 1 or (zero and value == 0) or (one and value == 1)):
        bounds = f"0 {'<=' if zero else '<'} {argument} {'<=' if one else '<'} 1"
        raise InputError(argument, value, f"{bounds}, {what}" if what else bounds, cure=cure)


def check_known(
    argument: str,
    value: object,
    known: Iterable[str],
    expected: str,
    *,
    problem: str = "is not valid",
    cure: str = "",
) -> None:
    """Refuse a word that is not among the known ones, and suggest the nearest."""
    words = list(known)
    if value not in words:
        cure = f"{nearest(str(value), words)} {cure}".rstrip()
        raise InputError(argument, value, expected, problem=problem, cure=cure)


def check_arguments(given: Mapping[str, Any], known: type, problem: str = "is not valid") -> None:
    """Refuse an argument that ``known``, a TypedDict, has not."""
    for name, value in given.items():
        if name not in known.__annotations__:
            cure = nearest(name, list(known.__annotations__))
            raise InputError(name, value, "a known argument", problem=problem, cure=cure)


def nearest(word: str, known: list[str]) -> str:
    """A sentence that suggests the nearest known word, or lists them all.

    >>> nearest("dp-stg", ["dp-sgd", "sai"])
    "Did you mean 'dp-sgd'? Known: dp-sgd, sai."
    """
    import difflib

    if not known:
        return "There are none yet."
    close = difflib.get_close_matches(word, known, n=1)
    guess = f"Did you mean {close[0]!r}? " if close else ""
    return f"{guess}Known: {', '.join(known)}."
