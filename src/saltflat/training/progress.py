"""A progress bar on a terminal, and silence elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any

from saltflat.plan import Plan
from saltflat.training.step import Step

if TYPE_CHECKING:
    from rich.console import Console
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
            self.bar = bar_with_note()
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
        whole = _short(self.plan.budget.epsilon, ".3g")
        parts = [f"ε so far {_short(row['epsilon_so_far'], '.3g')} of the plan's {whole}"]
        if "accuracy" in row:
            label = f" ({row['evaluation']})" if "evaluation" in row else ""
            parts.append(f"accuracy {_short(row['accuracy'], '.2%')}{label}")
        if "loss" in row:
            parts.append(f"test loss {_short(row['loss'], '.3f')}")
        self.bar.update(self.task, note=", ".join(parts))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.stop()


def bar_with_note(console: Console | None = None) -> Bar:
    """A bar on standard error whose tasks have a ``note``, on a line of its own.

    A note beside the bar would take its room from the count of steps on a terminal of 80 columns.
    """
    from rich.console import Console, RenderableType
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column
    from rich.text import Text

    class WithNote(Progress):
        def get_renderables(self) -> Any:
            shown: RenderableType = self.make_tasks_table(self.tasks)
            yield shown
            for task in self.tasks:
                if task.fields.get("note"):
                    yield Text(f"  {task.fields['note']}", no_wrap=True, overflow="ellipsis", style="dim")

    columns = (
        TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
        BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=8)),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TimeRemainingColumn(table_column=Column(no_wrap=True)),
    )
    return WithNote(*columns, console=console or Console(stderr=True), expand=True)


def _short(value: float | str, form: str) -> str:
    return value if isinstance(value, str) else format(value, form)
