"""The mechanism of a `Tuning`: a secret number of trials, and the best of them.

Nothing of the other trials is stored, logged or shown, and neither is how many there were. The whole cost is
on disk before the first one begins.
"""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypedDict

import torch
from torch import nn

from saltflat.data.source import Examples
from saltflat.engine.batch import LossFunction
from saltflat.errors import SaltflatError
from saltflat.mechanism.randomness import TIER_FAST
from saltflat.mechanism.repetitions import draw_candidate, draw_repetitions
from saltflat.mechanism.streams import CryptographicStream
from saltflat.plan import Plan
from saltflat.plan.tuning import Point, Tuning
from saltflat.record.certificate import certify
from saltflat.record.folder import RunFolder
from saltflat.record.selected import selection_of
from saltflat.training.evaluate import with_weights
from saltflat.training.fit import metrics_row, run_of
from saltflat.training.prepare import prepare
from saltflat.training.run import Run
from saltflat.training.score import noised_score, right_answers
from saltflat.training.session import Session
from saltflat.training.step import Schedule

ModelOrMaker = nn.Module | Callable[[], nn.Module]


class NothingSelectedError(SaltflatError):
    """The law of the number of trials gave none: there is nothing to show, and the budget is spent."""


class TrialSettings(TypedDict, total=False):
    """What every trial shares, as in `fit`."""

    loss_fn: LossFunction | None
    schedule: Schedule | str | None
    device: torch.device | str | None
    micro_batch: int | None
    randomness: str | None
    check_gradients: Any


@dataclass(frozen=True)
class Tuned:
    """The chosen run, its settings, and how it was chosen.

    ``score`` is the share of right answers by which it won: noised where the rows were private. ``tuning`` is
    what was declared, with its cost; None after a search on public data. ``scores`` then holds one row a point.
    """

    run: Run
    settings: Point
    score: float
    tuning: Tuning | None = None
    scores: tuple[dict[str, Any], ...] = ()


@dataclass
class Trials:
    """``held`` is how many units were declared to be held out for the score: a public number."""

    model: ModelOrMaker
    train: Any
    scored: Examples
    held: float
    tuning: Tuning
    stream: CryptographicStream
    shared: TrialSettings
    seed: int | None
    groups: Any = None

    def rehearse(self, evaluate: Any) -> None:
        """Everything that can be refused is refused here, before anything is spent."""
        for number, plan in enumerate(self.tuning.plans):
            with warnings.catch_warnings():
                if number:
                    warnings.simplefilter("ignore")  # said of the first
                session = self._session(plan, 0, evaluate)
            right_answers(session.loop.model, self.scored, session.loop.device)

    def run(
        self, folder: RunFolder | None, evaluate: Any, progress: bool | None, facts: dict[str, Any]
    ) -> Tuned:
        """Record the whole cost, then run the trials and keep the best."""
        record = None if folder is None else folder.tuning_ledger()
        try:
            if record is not None:
                record.record("tuning", **self._declared())
            with waiting(self.tuning, progress):
                best = self._best()
            if best is None:
                raise NothingSelectedError(
                    "The law gave no trial, so there is nothing to show. The budget of this tuning is spent.\n"
                    "  The laws 'logarithmic' and 'geometric' always give a trial."
                )
            number, score, session = best
            if record is not None:
                record.record(
                    "selected", settings=dict(self.tuning.points[number]), score=score,
                    plan_hash=session.loop.plan.hash, ledger_head=session.ledger.head,
                )  # fmt: skip
            return self._shown(number, score, session, folder, evaluate, facts)
        finally:
            if record is not None:
                record.close()

    def _declared(self) -> dict[str, Any]:
        tuning = self.tuning
        return {
            "format": 1,
            "tuning_hash": tuning.hash,
            "tuning": tuning.to_dict(),
            "epsilon": "inf" if self.seed is not None else tuning.epsilon,
            "delta": tuning.budget.delta,
            "unit": tuning.budget.unit,
            "relation": tuning.budget.relation,
            "randomness": self.shared.get("randomness") or TIER_FAST,
            "seeded": self.seed is not None,
        }

    def _best(self) -> tuple[int, float, Session] | None:
        """The best of a secret number of trials. Of two that are equal, the first: trials are exchangeable."""
        best: tuple[int, float, Session] | None = None
        for turn in range(draw_repetitions(self.tuning.repetitions, self.stream)):
            number = draw_candidate(len(self.tuning.plans), self.stream)
            # said in the rehearsal; once a trial would tell their number
            with warnings.catch_warnings(action="ignore"):
                session = self._session(self.tuning.plans[number], turn)
                for _ in session.loop:
                    pass
            session.taken = session.seconds
            score = self._score(session)
            if best is None or score > best[1]:
                best = number, score, session
        return best

    def _session(self, plan: Plan, turn: int, test: Any = None) -> Session:
        if self.seed is not None:
            torch.manual_seed(self.seed)
        seed = None if self.seed is None else self.seed + turn
        return prepare(made(self.model), self.train, plan, test, seed=seed, groups=self.groups, **self.shared)

    def _score(self, session: Session) -> float:
        loop, noise = session.loop, self.tuning.score_noise
        with with_weights(loop.model, loop.average.average):
            if noise is None:
                return float(right_answers(loop.model, self.scored, loop.device).mean())
            count = noised_score(
                loop.model, self.scored, noise, loop.mechanism.randomness, loop.device,
                by_person=self.tuning.budget.unit == "person",
            )  # fmt: skip
            return count / self.held

    def _shown(
        self,
        number: int,
        score: float,
        session: Session,
        folder: RunFolder | None,
        evaluate: Any,
        facts: dict[str, Any],
    ) -> Tuned:
        """The best trial as a run, in memory and in the folder."""
        tuning, loop = self.tuning, session.loop
        settings = dict(tuning.points[number])
        row = metrics_row(loop, loop.last_step(), evaluate)
        row["epsilon_so_far"] = "inf" if self.seed is not None else round(tuning.epsilon, 6)
        files: dict[str, str] = {}
        if folder is not None:
            session.facts = facts | {"settings": settings}
            session.store(folder)
            if (spec := getattr(loop.model, "saltflat_spec", None)) is not None:
                folder.write_json("model.json", spec)
            folder.append_metrics(row)
            folder.write_ledger(session.ledger)
            folder.write_plan(loop.plan)
            files = folder.hashes()
        certificate = certify(
            loop.plan, session.ledger,
            randomness=loop.mechanism.randomness.tier, seeded=self.seed is not None, files=files,
            selection=selection_of(tuning.to_dict(), settings, score),
        )  # fmt: skip
        if folder is not None:
            folder.write_certificate(certificate)
        session.folder, session.certificate, session.history = folder, certificate, [row]
        return Tuned(run_of(session), settings, score, tuning)


def made(model: ModelOrMaker) -> nn.Module:
    """A model of its own for a trial."""
    return copy.deepcopy(model) if isinstance(model, nn.Module) else model()


@contextmanager
def waiting(tuning: Tuning, shown: bool | None) -> Iterator[None]:
    """A sign of life on a terminal that does not tell how many trials there are."""
    if not (sys.stderr.isatty() if shown is None else shown):
        yield
        return
    from rich.console import Console

    words = f"tuning over {len(tuning.plans)} settings; {tuning.repetitions.mean:g} trials are expected, their number"
    with Console(stderr=True).status(f"{words} and their scores stay secret"):
        yield
