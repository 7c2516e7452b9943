"""The server's side of a round, whatever the engine: mask, task, sum, noise. It is what a `Loop` asks for releases."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from saltflat.data.people import Rows
from saltflat.engine.calling import take
from saltflat.federated.aggregate import NAME, Form, sum_of_clipped, sum_of_shares
from saltflat.federated.local import updates
from saltflat.federated.masks import chosen, kept_of, public_generator, random_mask, release_mask
from saltflat.federated.protocol import Engine, task_for
from saltflat.plan import Phase, PublicMask, RandomMask, ReleaseMask
from saltflat.training.build import clipping_function
from saltflat.training.step import Loop, Released

PUBLIC_ROWS = 512

Watch = Callable[[int, float, list[float]], None]
"""Sees a round, its clip norm and the norms of its updates: not covered by ε."""


class Server:
    """Makes the releases of a plan over clients.

    One round reads like the paper: draw clients, fix the mask, record, ask, clip whole updates and add them up, add
    noise on the mask, divide by the expected number of clients. ``kept`` holds sums and counts of releases, for a
    mask that follows them.
    """

    def __init__(self, engine: Engine, public: Rows | None = None, watch: Watch | None = None) -> None:
        self.engine, self.public, self.watch = engine, public, watch
        self.kept: dict[str, dict[str, Tensor]] = {}

    def begin(self, loop: Loop) -> None:
        """Make room for what is remembered of releases."""
        assert loop.plan.federation is not None
        if isinstance(loop.plan.federation.mask, ReleaseMask):
            zeros = {name: torch.zeros_like(w, requires_grad=False) for name, w in loop.weights.items()}
            self.kept = {"mask_sum": zeros, "mask_count": {name: z.clone() for name, z in zeros.items()}}

    def query(self, loop: Loop, number: int, phase: Phase) -> Released | None:
        """One round. Only what it returns leaves the private side; None if too few clients answered."""
        mechanism, plan = loop.mechanism, loop.plan
        form = Form.of(loop.weights)
        cohort = mechanism.draw_batch().tolist()
        clip_norm = loop.clip_norms.now(phase)
        mask = self.mask(loop, number, phase, form)
        named = None if mask is None else {n: m.to(loop.device) for n, m in form.split(mask).items()}
        task = task_for(plan, phase, number, loop.weights, clip_norm, named)
        mechanism.record(number, phase, clip_norm)
        answers = self.engine.collect(task, cohort)
        shared = plan.shared_noise
        if shared is not None:
            found = sum_of_shares(answers, cohort, form, mask=mask)
            if found.answers < shared.survivors:
                self.give_up(loop, number, found.answers, shared.survivors)
                return None
            # the clients added the noise
            release = mechanism.release({NAME: found.total}, 0.0, clip_norm)[NAME]
            return Released(self.spread(loop, release, mask, form))
        norms: list[float] = []
        found = sum_of_clipped(
            answers, cohort, form, clip_norm,
            mask=mask, clipping=clipping_function(plan.clipping), grid=mechanism.grid(clip_norm),
            watch=None if self.watch is None else norms.append,
        )  # fmt: skip
        if self.watch is not None:
            self.watch(number, clip_norm, norms)
        release = mechanism.release({NAME: found.total}, phase.sigma, clip_norm)[NAME]
        return Released(self.spread(loop, release, mask, form), mechanism.release_count(found.short))

    def observe(self, loop: Loop, number: int, released: Released) -> None:
        """Remember a release for the masks of later rounds. Coordinates outside its mask are exactly zero."""
        for name, part in released.gradient.items():
            if self.kept:
                self.kept["mask_sum"][name].add_(part)
                self.kept["mask_count"][name].add_(part != 0)

    def spread(self, loop: Loop, release: Tensor, mask: Tensor | None, form: Form) -> dict[str, Tensor]:
        """The release as a gradient: updates point downhill, and an optimizer steps against what it is given."""
        if mask is not None:
            release = torch.zeros(form.size, dtype=release.dtype).masked_scatter_(mask, release)
        parts = form.split(-release)
        return {name: parts[name].to(w.device, w.dtype) for name, w in loop.weights.items()}

    def mask(self, loop: Loop, number: int, phase: Phase, form: Form) -> Tensor | None:
        """Which coordinates this round releases, from public things; None for all."""
        assert loop.plan.federation is not None
        kind = loop.plan.federation.mask
        generator = public_generator(loop.plan, number)
        if isinstance(kind, RandomMask):
            return random_mask(kind.ratio, form.size, generator)
        if isinstance(kind, ReleaseMask) and number > kind.dense:
            total, count = (form.flat(self.kept[name]) for name in ("mask_sum", "mask_count"))
            return release_mask(kind, total, count, generator)
        if isinstance(kind, PublicMask):
            marks = form.flat(self.public_update(loop, number, phase, generator)).abs()
            return chosen(marks, kept_of(kind.ratio, form.size), generator)
        return None

    def public_update(
        self, loop: Loop, number: int, phase: Phase, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """The update of a client that holds public rows, some of them."""
        assert self.public is not None
        some = torch.randperm(len(self.public), generator=generator)[:PUBLIC_ROWS]
        rows = Rows(take(self.public.inputs, some), self.public.targets[some]).to(loop.device)
        task = task_for(loop.plan, phase, number, loop.weights, phase.clip_norm, None)
        return updates(loop.model, task, [rows], loop.loss_fn)[0]

    def give_up(self, loop: Loop, number: int, answers: int, needed: int) -> None:
        """Record a round that releases nothing; once, also when a seeded test run comes to it again."""
        ledger = loop.mechanism.ledger
        if not any(entry["step"] == number for entry in ledger.of_kind("aborted")):
            ledger.abort_release(step=number, answers=answers, needed=needed)
