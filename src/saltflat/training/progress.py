"""A progress bar on a terminal, and silence elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any

from saltflat.plan import Plan
from saltflat.training.step import Step

if TYPE_CHECKING:
    from rich.progress import Progress as Bar


class Progress:
    """Shows steps, time left, accuracy and loss on evaluation data, and ε so far.

    Numbers about private rows carry the label "not covered".
    """

    def __init__(self, plan: Plan, shown: bool | None = None) -> None:
        self.plan = plan
        self.shown = sys.stderr.isatty() if shown is None else shown
        self.bar: Bar | None = None
        self.task: Any = None

    def __enter__(self) -> Progress:
        if self.shown:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
            )  # fmt: skip
            self.bar = Progress(*columns, console=Console(stderr=True))
            self.task = self.bar.add_task(self.plan.method, total=self.plan.steps, note="")
            self.bar.start()
        return self

    def advance(self, step: Step) -> None:
        """One more step is done."""
        if self.bar is not None:
            self.bar.update(self.task, completed=step.number)

    def note(self, row: dict[str, Any]) -> None:
        """Show what an evaluation found."""
        if self.bar is None:
            return
        parts = []
        if "accuracy" in row:
            label = f" ({row['evaluation']})" if "evaluation" in row else ""
            parts.append(f"accuracy {row['accuracy']:.2%}{label}")
        if "loss" in row:
            parts.append(f"test loss {_short(row['loss'], '.3f')}")
        parts.append(f"ε so far {_short(row['epsilon_so_far'], '.3g')} of the plan's")
        self.bar.update(self.task, note=", ".join(parts))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.stop()


def _short(value: float | str, form: str) -> str:
    return value if isinstance(value, str) else format(value, form)
