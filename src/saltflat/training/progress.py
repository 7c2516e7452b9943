"""A progress bar on a terminal, and silence elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar

    from saltflat.plan import Plan


class NotedBar:
    """A bar with a note below it, where it is ``shown``; elsewhere nothing."""

    def __init__(self, words: str, total: int | None, shown: bool) -> None:
        self.words, self.total, self.shown = words, total, shown
        self.bar: Bar | None = None

    def __enter__(self) -> NotedBar:
        if self.shown:
            self.bar = bar_with_note()
            self.task = self.bar.add_task(self.words, total=self.total, note="")
            self.bar.start()
        return self

    def update(self, **what: Any) -> None:
        """Takes what rich's own `update` takes, and ``note``."""
        if self.bar is not None:
            self.bar.update(self.task, **what)

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()


def note_about(row: dict[str, Any], plan: Plan) -> str:
    """What an evaluation found. Numbers about private rows carry the label "not covered"."""
    whole = _short(plan.budget.epsilon, ".3g")
    parts = [f"ε so far {_short(row['epsilon_so_far'], '.3g')} of the plan's {whole}"]
    if "accuracy" in row:
        label = f" ({row['evaluation']})" if "evaluation" in row else ""
        parts.append(f"accuracy {_short(row['accuracy'], '.2%')}{label}")
    if "loss" in row:
        parts.append(f"test loss {_short(row['loss'], '.3f')}")
    return ", ".join(parts)


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
