"""Reports: one page for people, and a privacy card for model hubs, made from run folders.

The package is its own door: ``sf.report(...)``. What is inside it can be imported as from any other.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from saltflat.record.verify import Accept
    from saltflat.report.making import Report


def report(
    runs: Any,
    out: str | Path | None = None,
    *,
    cards: Sequence[str | Path] = (),
    audit: str | Path | None = None,
    accept: Sequence[Accept] = (),
) -> Report:
    """Verify runs, and write a page about them: verdict, curves, phases, geometry, comparison, audit, certificate.

    ``runs`` is a run folder, a `Run` that has one, a folder of runs such as ``saltflat compare`` makes, or a list of
    these. ``out`` is the HTML file; without it the page is only in the value. ``cards`` are files of the privacy
    card of a single run, ending in ``.json`` or ``.md``. ``audit`` is what ``saltflat audit --json`` printed, and
    ``accept`` as for `verify`. ``geometry.json`` and ``audit.json`` in a run folder are used where they are.

    Guarantees: the page states no ε below what the ledger shows, computed again by the accountant. A run that is
    not verified, not finished or not private is named so before anything else. Text from files is escaped, and the
    page holds no script.

    >>> import tempfile
    >>> import saltflat as sf
    >>> plan = sf.plans.dp_sgd(noise_multiplier=2.0, delta=1e-4, population=1437, batch_size=64, steps=2)
    >>> out = tempfile.mkdtemp() + "/run"
    >>> run = sf.fit(sf.models.build("mlp"), sf.data.load("digits").train, plan, out=out, progress=False)
    >>> made = sf.report(run, out + "/report.html")
    >>> made.passed, made.verdict.title
    (True, 'Verified: ε = 0.1305 at δ = 0.0001')
    """
    from saltflat.report.making import make_report

    return make_report(runs, out, cards, audit, accept)


def write_report(folders: list[Path], out: Path) -> Path:
    """Write the page of these run folders; returns where it is."""
    report(folders, out)
    return out


class _Door(ModuleType):
    """A module that can be called: ``sf.report`` is a chapter of the package, and its function."""

    def __call__(self, *arguments: Any, **options: Any) -> Report:
        return report(*arguments, **options)


sys.modules[__name__].__class__ = _Door
