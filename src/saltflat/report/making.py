"""`Report`: the verdict, the page and the card of one or several runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from saltflat.errors import InputError
from saltflat.record.atomic import write_whole
from saltflat.record.verify import Accept
from saltflat.report.audits import read_audit
from saltflat.report.card import card, card_json, card_markdown
from saltflat.report.curves import standings, who_won
from saltflat.report.facts import RunFacts, read_run, run_folders
from saltflat.report.groups import grouped
from saltflat.report.page import page
from saltflat.report.spent import Spent, spent
from saltflat.report.words import Verdict, run_verdict, runs_verdict


@dataclass(frozen=True)
class Report:
    """What a report says. ``passed`` is whether every run was verified; printing it gives the verdict.

    ``page`` is the HTML, ``path`` where it was written, ``cards`` the files of the privacy card.
    """

    verdict: Verdict
    runs: tuple[RunFacts, ...] = field(repr=False)
    costs: tuple[Spent, ...] = field(repr=False)
    verdicts: tuple[Verdict, ...] = field(repr=False)
    page: str = field(repr=False)
    path: Path | None = None
    cards: tuple[Path, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every run passed its verification, and no audit beside it caught anything."""
        sound = all(run.verification.passed for run in self.runs)
        return sound and not any(v.title == "CAUGHT BY AN AUDIT" for v in self.verdicts)

    def card(self) -> dict[str, Any]:
        """The privacy card of the one run of this report, as plain data."""
        if len(self.runs) != 1:
            raise InputError(
                "card", len(self.runs), "one run", problem="runs have no card together: a card is that of one model",
                cure="Make a report of the run that is to be published.",
            )  # fmt: skip
        return card(self.runs[0], self.costs[0], self.verdicts[0])

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for ``--json``."""
        return {
            "passed": self.passed,
            "verdict": {"title": self.verdict.title, "sentences": list(self.verdict.sentences)},
            "out": None if self.path is None else str(self.path),
            "cards": [str(path) for path in self.cards],
            "runs": [card(*facts) for facts in zip(self.runs, self.costs, self.verdicts)],
            "methods": standings(grouped(self.runs, self.costs)),
        }

    def __str__(self) -> str:
        return "".join(
            letter if letter.isprintable() or letter == "\n" else "?" for letter in str(self.verdict)
        )


def make_report(
    runs: Any,
    out: str | Path | None,
    cards: Sequence[str | Path],
    audit: str | Path | None,
    accept: Sequence[Accept],
) -> Report:
    """What `saltflat.report` does; see there."""
    folders = run_folders([_folder(run) for run in (runs if isinstance(runs, list | tuple) else [runs])])
    if audit is not None and len(folders) > 1:
        raise InputError(
            "audit", str(audit), "one run", problem="is that of one run, and there are several",
            cure="Put it into the folder of its run, as audit.json.",
        )  # fmt: skip
    suffixes = [Path(path).suffix for path in cards]
    if wrong := [suffix for suffix in suffixes if suffix not in (".json", ".md")]:
        raise InputError(
            "card", wrong[0], "a name that ends in .json or .md", problem="is the end of a card's name"
        )
    given = None if audit is None else read_audit(Path(audit))
    found = tuple(read_run(folder, audit=given, accept=accept) for folder in folders)
    costs = tuple(spent(run) for run in found)
    verdicts = tuple(run_verdict(run, cost) for run, cost in zip(found, costs))
    groups = grouped(found, costs)
    whole = verdicts[0] if len(found) == 1 else runs_verdict(found, costs, verdicts, who_won(groups))
    report = Report(
        whole, found, costs, verdicts, _sound(page(found, costs, groups, verdicts, whole)),
        None if out is None else Path(out), tuple(Path(path) for path in cards),
    )  # fmt: skip
    contents = {path: _card(report, path) for path in report.cards}
    if report.path is not None:
        contents[report.path] = report.page
    for path, content in contents.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content.encode())
    return report


def _card(report: Report, path: Path) -> str:
    data = report.card()
    return _sound(card_json(data) if path.suffix == ".json" else card_markdown(data))


def _sound(words: str) -> str:
    """Text that can be written: JSON may hold halves of letters, which no file can."""
    return words.encode("utf-8", "replace").decode()


def _folder(run: Any) -> Path:
    """A run folder by its name, or that of a `Run` which has one."""
    if isinstance(run, str | Path):
        return Path(run)
    folder = getattr(run, "folder", None)
    if isinstance(folder, Path):
        return folder
    raise InputError(
        "runs", run, "run folders, or runs that were made with out=...", problem="has no folder on disk",
        cure="Train with out='runs/mine', and report that.",
    )  # fmt: skip
