"""How the command line speaks: colours on a terminal only, and how it stops."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NoReturn

import click

STOPPED = 130
COLOURS = {"passed": "green", "failed": "red", "caught": "red", "noted": "yellow", "not tried": "yellow"}


def painted(text: str, stream: IO[str] | None = None, **style: Any) -> str:
    """The text in a colour if the stream (standard output) is a terminal that wants colours, else as it is.

    ``NO_COLOR``, set to anything, and ``TERM=dumb`` turn colours off (https://no-color.org).

    >>> import io
    >>> painted("won", io.StringIO(), fg="green")
    'won'
    """
    stream = sys.stdout if stream is None else stream
    unwanted = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return text if unwanted or not stream.isatty() else click.style(text, **style)


def painted_checks(text: str) -> str:
    """A list of checks with the word at the start of each line in its colour."""
    words = "|".join(COLOURS)

    def coloured(found: re.Match[str]) -> str:
        return found[1] + painted(found[2], fg=COLOURS[found[2].lower()])

    return re.sub(rf"^(\s+)({words})(?=\s)", coloured, text, flags=re.MULTILINE | re.IGNORECASE)


def shown_epsilon(epsilon: float | str) -> str:
    """ε of a summary, for a sentence.

    >>> shown_epsilon("inf"), shown_epsilon(2.99996)
    ('inf: NOT PRIVATE', '3')
    """
    return "inf: NOT PRIVATE" if epsilon == "inf" else f"{epsilon:.4g}"


def say_accuracy(summary: dict[str, Any], spent: str) -> None:
    """The accuracy of a run, if there are test rows, and what it cost; then that of its average."""
    label = f" ({summary['evaluation']} by ε)" if summary["evaluation"] else ""
    if summary["accuracy"] is not None:
        click.echo(f"accuracy {summary['accuracy']:.2%} on test data{label}, {spent}")
    if summary["average_accuracy"] is not None:
        click.echo(f"accuracy of the averaged weights {summary['average_accuracy']:.2%}{label}")


def telling(options: dict[str, Any]) -> tuple[Callable[[str], None] | None, bool | None]:
    """What says lines on the way, and whether progress is shown (None: on a terminal); neither if it shall be quiet."""
    if options["quiet"] or options["as_json"]:
        return None, False
    return (lambda text: click.echo(text, err=True)), None


def say_folder(summary: dict[str, Any], run: Any, quiet: bool) -> None:
    """Where the run is; on a terminal also its certificate."""
    click.echo(f"run folder {summary['out']} ({summary['seconds']:.1f} s)")
    if not quiet and sys.stderr.isatty():
        click.echo(str(run.certificate), err=True)


def same_command() -> str:
    """The line that started this process, to be typed again."""
    return shlex.join(["saltflat", *sys.argv[1:]])


def stopped(words: str, go_on: str | None = None) -> NoReturn:
    """End after Ctrl-C: say what is kept, and the exact command that goes on with it."""
    label = painted("saltflat:", sys.stderr, fg="red", bold=True)
    more = "" if go_on is None else f"\n  Go on with: {go_on}"
    click.echo(f"{label} stopped. {words}{more}", err=True)
    raise click.exceptions.Exit(STOPPED)


def stopped_run(folder: Path, command: str = "train") -> NoReturn:
    """End after Ctrl-C, with the command that goes on, if the run can."""
    ledger = folder / "ledger.jsonl"
    if (folder / "checkpoint" / "state.safetensors").exists():
        stopped(
            "What was released so far stays recorded in the ledger.",
            f"saltflat {command} --resume {shlex.quote(str(folder))}",
        )
    if ledger.exists() and (folder / "plan.json").exists():
        stopped(f"What was released so far stays recorded in {ledger}. Without checkpoints it cannot go on.")
    stopped("Nothing was released yet.")
