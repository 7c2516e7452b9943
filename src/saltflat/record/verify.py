"""`verify`: is a run folder what its certificate says it is? Computed again from ledger, plan and files.

Nothing in the folder is trusted or executed. Files are read strictly and within bounds, ε is computed from the
ledger's entries, and the whole certificate is made again from plan and ledger and compared. What this cannot
show: that the process was honest, or that nobody wrote *all* files anew. For the second there are signatures and
hashes that were kept elsewhere.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from saltflat.accounting import epsilon, merged, rdp_epsilon, second_epsilon
from saltflat.errors import InputError
from saltflat.plan import Plan
from saltflat.record import signing
from saltflat.record.agreement import check_entries
from saltflat.record.canonical import (
    DamagedError,
    file_hash,
    fingerprint,
    no_run,
    parsed,
    read_bounded,
    same,
    spelled,
)
from saltflat.record.certificate import FILES, FORMAT, Certificate, certify, sealed
from saltflat.record.comparing import ROUNDING, differences, figure, is_figure
from saltflat.record.evaluations import FILE as EVALUATIONS
from saltflat.record.evaluations import composed, evaluation_events, spent_on_evaluations
from saltflat.record.findings import Outcome, Verification, judged
from saltflat.record.ledger import Ledger
from saltflat.record.public import public_data
from saltflat.record.selected import recorded_selection, tuned_on

Accept = Literal["not-private", "unfinished"]

REQUIRED = ("plan.json", "ledger.jsonl", "weights.safetensors", "run.json")
MOST_STEPS = 10_000_000
MOST_KINDS = 100
AGREES = 0.01  # how much the second accountant may find above the claim

T = TypeVar("T")


def verify(
    path: str | Path,
    *,
    public_key: str | Path | None = None,
    head: str | None = None,
    accept: Sequence[Accept] = (),
) -> Verification:
    """Check a run folder against its certificate, and compute ε again from its ledger.

    ``public_key`` is a PEM file: the certificate must be signed with its private key. ``head`` is a hash that
    was kept elsewhere: the ledger's head, or the certificate's own. A run that is not private (seeded, or without
    noise) and one that stopped early fail, unless ``accept`` names them.

    Guarantees: any single changed byte in plan, ledger, weights, average, metrics, model.json, run.json,
    certificate or its page fails. So does a certificate whose figures do not follow from plan and ledger. Does
    not show that the process was honest; nor, without a signature or ``head``, that nobody wrote all files anew.

    References: two accountants, privacy loss distributions by dp-accounting and our own composition by FFT
    (Gopi, Lee & Wutschitz 2021).

    >>> import tempfile
    >>> import saltflat as sf
    >>> plan = sf.plans.dp_sgd(noise_multiplier=2.0, delta=1e-4, population=1437, batch_size=64, steps=2)
    >>> out = tempfile.mkdtemp() + "/run"
    >>> run = sf.fit(sf.models.build("mlp"), sf.data.load("digits").train, plan, out=out, progress=False)
    >>> sf.verify(out).passed
    True
    """
    unknown = [word for word in accept if word not in get_args(Accept)]
    if unknown:
        raise InputError("accept", unknown[0], f"words among {', '.join(get_args(Accept))}")
    folder = Path(path)
    if not any((folder / name).exists() for name in ("plan.json", "ledger.jsonl", "certificate.json")):
        raise no_run(folder)
    key = None if public_key is None else signing.read_public_key(public_key)
    return _Verifier(folder, key, head, tuple(accept)).verified()


class _Verifier:
    """The checks, in order. Each gives a finding; one that needs what another did not find is not tried."""

    def __init__(self, folder: Path, key: Any, head: str | None, accept: tuple[str, ...]) -> None:
        self.folder, self.key, self.wanted_head, self.accept = folder, key, head, accept
        self.content = b""
        self.certificate: dict[str, Any] | None = None
        self.hashes: dict[str, str] = {}
        self.plan: Plan | None = None
        self.ledger: Ledger | None = None
        self.epsilons: dict[str, float | None] = {}
        self.agrees = False

    def verified(self) -> Verification:
        checks: list[tuple[str, str, Callable[[], str | None]]] = [
            ("certificate", "is there, and is spelled and hashed as it was written", self.read_certificate),
            ("files", "every file has the bytes that the certificate names", self.check_files),
            ("plan", "is a plan, spelled as it was written, with the certificate's hash", self.read_plan),
            ("ledger", "its chain is whole, with the certificate's count and head", self.read_ledger),
            ("agreement", "the ledger records this plan and nothing else", self.check_agreement),
            ("epsilon", "the claim covers what the ledger's releases cost", self.check_epsilon),
            ("second opinion", "another accountant, with no code in common, agrees", self.check_second),
            ("claims", "every figure and sentence follows from plan and ledger", self.check_claims),
            ("page", "certificate.html says what the certificate says", self.check_page),
            ("private", "the run makes a claim: noise in every release, and no seed", self.check_private),
            ("finished", "the run came to the end of its plan", self.check_finished),
            ("evaluations", "their record is whole, and each costs what it says", self.check_evaluations),
            ("signature", "the holder of a key vouched for the certificate", self.check_signature),
            ("head", "the ledger or certificate is the one whose hash was kept", self.check_head),
        ]
        # nobody evaluated, or nobody kept a hash
        left_out = {"evaluations"} if not (self.folder / EVALUATIONS).exists() else set()
        left_out |= {"head"} if self.wanted_head is None else set()
        findings = tuple(judged(*check) for check in checks if check[0] not in left_out)
        claimed = (self.certificate or {}).get("epsilon")
        return Verification(
            str(self.folder),
            findings,
            claimed=claimed if is_figure(claimed) else None,
            delta=None if self.plan is None else self.plan.budget.delta,
            epsilon=self.epsilons.get("pld"),
            epsilon_second=self.epsilons.get("second"),
            epsilon_rdp=self.epsilons.get("rdp"),
            recorded=None if self.ledger is None else self.ledger.releases,
            planned=None if self.plan is None else self.plan.steps,
            head=None if self.ledger is None else self.ledger.head,
            certificate_hash=self.content_hash,
            certificate_bytes=self.content,
        )

    @property
    def content_hash(self) -> str | None:
        return hashlib.sha256(self.content).hexdigest() if self.content else None

    # --- files ------------------------------------------------------------------------------------

    def read_certificate(self) -> str | None:
        if not (self.folder / "certificate.json").exists():
            raise DamagedError(
                "certificate.json is missing: the run is under way, or was cut off before it could be certified. "
                "Go on with it by resume, and verify it then."
            )
        content = read_bounded(self.folder / "certificate.json")
        self.content = content
        data = Certificate.from_dict(parsed(content, "certificate.json")).data
        if data["saltflat_certificate"] < FORMAT:
            raise DamagedError(
                f"certificate.json has format {data['saltflat_certificate']}, which holds no hashes of files. "
                f"Formats from {FORMAT} on can be verified."
            )
        if spelled(data) != content:
            raise DamagedError("certificate.json is not spelled as saltflat spells it: it was changed.")
        self.certificate = data
        rest = {key: value for key, value in data.items() if key != "certificate_sha256"}
        if not same(data.get("certificate_sha256"), fingerprint(rest)):
            raise DamagedError("certificate.json was changed: its own hash does not fit.")
        files = data.get("files")
        if not isinstance(files, dict) or not all(isinstance(value, str) for value in files.values()):
            raise DamagedError("certificate.json does not say which files it is about.")
        return None

    def check_files(self) -> str | None:
        stated = self.stated.get("files")
        stated = stated if isinstance(stated, dict) else {}
        faults = []
        for name in FILES:
            there = (self.folder / name).exists()
            if there:
                self.hashes[name] = file_hash(self.folder / name)
            if there and name not in stated:
                faults.append(f"{name} is not named in the certificate.")
            elif not there and (name in stated or name in REQUIRED):
                faults.append(f"{name} is missing.")
            elif there and stated[name] != self.hashes[name]:
                faults.append(f"{name} was changed: its hash is not the certificate's.")
        faults += [
            f"{str(name)[:80]} is named in the certificate, and unknown."
            for name in stated
            if name not in FILES
        ]
        if faults:
            raise Outcome("failed", *faults)
        known = {*FILES, "certificate.json", "certificate.html", signing.NAME, "lock"}
        beside = sorted(path.name for path in self.folder.iterdir() if path.name not in known)
        return f"beside the run, not looked at: {', '.join(beside[:8])}" if beside else None

    def read_plan(self) -> str | None:
        content = read_bounded(self.folder / "plan.json")
        plan = Plan.from_dict(parsed(content, "plan.json"))
        if (plan.to_json() + "\n").encode() != content:
            raise DamagedError("plan.json is not spelled as saltflat spells it: it was changed.")
        if not plan.is_solved:
            raise DamagedError("plan.json has a phase whose noise is not known: no run has such a plan.")
        if plan.steps > MOST_STEPS or len(plan.phases) > MOST_KINDS:
            raise DamagedError(
                f"plan.json has {plan.steps} steps in {len(plan.phases)} phases; up to {MOST_STEPS} and "
                f"{MOST_KINDS} can be verified."
            )
        self.plan = plan
        if self.certificate is not None and self.certificate.get("plan_hash") != plan.hash:
            raise DamagedError("plan.json is not the plan that was certified: the hash of the plan differs.")
        return None

    def read_ledger(self) -> str | None:
        self.ledger = ledger = Ledger.read(self.folder / "ledger.jsonl")
        stated = self.certificate or {}
        faults = []
        if stated and not same(stated.get("ledger_entries"), len(ledger.entries)):
            faults.append(
                f"it has {len(ledger.entries)} entries, and the certificate counts {stated.get('ledger_entries')!r}."
            )
        if stated and stated.get("ledger_head") != ledger.head:
            faults.append("its head is not the certificate's: it was cut, or written anew.")
        if faults:
            raise Outcome("failed", *faults)
        return None

    # --- what they say ----------------------------------------------------------------------------

    def check_agreement(self) -> str | None:
        plan, ledger = self.need_both()
        check_entries(ledger, plan)
        self.agrees = True
        return None

    def check_epsilon(self) -> str | None:
        plan, ledger = self.need_agreeing()
        events = merged(ledger.events())
        if len(events) > MOST_KINDS:
            raise DamagedError(
                f"The ledger has {len(events)} kinds of releases; up to {MOST_KINDS} can be computed."
            )
        delta = plan.budget.delta
        self.epsilons["pld"] = spent = epsilon(events, delta)
        self.epsilons["rdp"] = rdp_epsilon(events, delta)
        bound = "not supported" if self.epsilons["rdp"] is None else f"{self.epsilons['rdp']:.4g}"
        words = f"from the ledger alone: ε = {spent:.6g} at δ = {delta:g} (PLD); Rényi bound {bound}"
        claimed = figure(
            self.need(self.certificate, "there is no certificate that claims anything").get("epsilon")
        )
        if claimed < spent * (1 - ROUNDING):
            raise Outcome("failed", f"the certificate claims ε = {claimed:.6g}; {words}.")
        if claimed < plan.epsilon * (1 - ROUNDING):
            raise Outcome(
                "failed",
                f"the certificate claims ε = {claimed:.6g}, and the whole plan costs {plan.epsilon:.6g}.",
            )
        return words

    def check_second(self) -> str | None:
        if "pld" not in self.epsilons:
            raise Outcome("not tried", "ε was not computed")
        plan, ledger = self.need_both()
        found = second_epsilon(merged(ledger.events()), plan.budget.delta)
        self.epsilons["second"] = found
        spent = self.epsilons["pld"] or 0.0
        if found is None:
            return "it does not support these releases: privacy loss distributions stand alone here"
        if math.isinf(spent) or math.isinf(found):
            if spent != found:
                raise Outcome("failed", f"it finds ε = {found:.6g}, and the first accountant {spent:.6g}.")
            return None
        if found > spent * (1 + AGREES) + ROUNDING:
            raise Outcome("failed", f"it finds ε = {found:.6g}, and the first accountant only {spent:.6g}.")
        coarse = spent > found * (1 + AGREES) + ROUNDING
        above = "; the first one's grid is coarse here: it claims more" if coarse else ""
        return f"our own composition by FFT: ε = {found:.6g}{above}"

    def check_claims(self) -> str | None:
        plan, ledger = self.need_agreeing()
        stated, opened = self.stated, ledger.entries[0]
        finished = stated.get("finished")
        about = parsed(read_bounded(self.folder / "run.json"), "run.json")
        again = certify(
            plan, ledger,
            randomness=opened["randomness"], seeded=opened["seeded"], files=self.hashes,
            finished=finished is True, tuned_on=tuned_on(about.get("facts")),
            selection=recorded_selection(self.folder, plan, ledger), public=public_data(about),
        ).data  # fmt: skip
        faults = differences(stated, again)
        if finished is True and ledger.releases != plan.steps:
            faults.append(f"it says finished, after {ledger.releases} of {plan.steps} releases.")
        if finished is True and plan.averages and "average.safetensors" not in self.hashes:
            faults.append("the plan averages, and there is no average.safetensors.")
        if faults:
            raise Outcome("failed", *faults)
        here, there = again["accountant"]["version"], stated["accountant"]["version"]
        return None if here == there else f"computed with dp-accounting {there}, checked with {here}"

    def check_page(self) -> str | None:
        stated, content = self.stated, read_bounded(self.folder / "certificate.html")
        made = sealed(stated)
        if content != made.page().encode():
            raise DamagedError("certificate.html is not the page of this certificate: it was changed.")
        if stated.get("page_sha256") != made.data["page_sha256"]:
            raise DamagedError("certificate.json names another page: its page_sha256 does not fit.")
        return None

    def check_evaluations(self) -> str | None:
        plan, _ = self.need_both()
        record = Ledger.read(self.folder / EVALUATIONS)
        opened = record.entries[0] if record.entries else {}
        if opened.get("kind") != "evaluations" or opened.get("plan_hash") != plan.hash:
            raise DamagedError(f"{EVALUATIONS} is that of another run.")
        stated = record.of_kind("evaluation")
        for entry, event in zip(stated, evaluation_events(record)):
            for word in ("unit", "relation"):  # ε of one unit and of another do not add up to anything
                if entry.get(word) != getattr(plan.budget, word):
                    raise Outcome(
                        "failed",
                        f"entry {entry['entry']} has the {word} {entry.get(word)!r}, and the plan "
                        f"{getattr(plan.budget, word)!r}: what they cost cannot be added up.",
                    )
            cost = epsilon([event], entry["delta"])
            if not cost <= entry["epsilon"] * (1 + ROUNDING):
                raise Outcome(
                    "failed", f"entry {entry['entry']} says ε = {entry['epsilon']}, and costs {cost:.6g}."
                )
        claimed = figure((self.certificate or {}).get("epsilon"))
        together = composed(spent_on_evaluations(record), (claimed, plan.budget.delta))
        return f"{len(stated)} recorded; training and evaluations: ε = {together[0]:.6g}, δ = {together[1]:g}"

    def check_private(self) -> str | None:
        plan, ledger = self.need_both()
        reasons = []
        if ledger.entries and ledger.entries[0].get("seeded") is not False:
            reasons.append(
                "the noise was drawn from a fixed seed and is predictable: a test run, not private."
            )
        if not plan.is_private or math.isinf(self.epsilons.get("pld") or 0.0):
            reasons.append("a release has no noise, or clipping is off: not private.")
        if (self.certificate or {}).get("private") is not True and not reasons:
            reasons.append("the certificate makes no claim.")
        if reasons:
            self.refuse("not-private", *reasons)
        return None

    def check_finished(self) -> str | None:
        stated = self.need(self.certificate, "there is no certificate: the run is not finished")
        if stated.get("finished") is True:
            return None
        recorded = "some" if self.ledger is None else str(self.ledger.releases)
        planned = "the planned" if self.plan is None else str(self.plan.steps)
        self.refuse(
            "unfinished",
            f"the run stopped after {recorded} of {planned} releases. Its certificate claims the whole plan's ε, "
            "which covers the weights as they are; the ledger may still grow. Go on with it by resume, and verify "
            "it then.",
        )
        return None

    # --- who vouches for them ---------------------------------------------------------------------

    def check_signature(self) -> str | None:
        if not (self.folder / signing.NAME).exists():
            if self.key is None:
                raise Outcome("noted", "not signed")
            raise Outcome("failed", "the certificate is not signed.")
        signature = signing.Signature.read(read_bounded(self.folder / signing.NAME))
        if self.key is None:
            raise Outcome(
                "noted", f"signed by key {signature.key_fingerprint}, not checked: pass the public key"
            )
        if not signature.is_by(self.key, self.content):
            raise DamagedError("the signature is not one of this certificate by this key.")
        return f"signed by key {signature.key_fingerprint}"

    def check_head(self) -> str | None:
        wanted = (self.wanted_head or "").strip().lower()
        if self.ledger is not None and wanted == self.ledger.head:
            return "it is the ledger's head: plan, noise and steps are those of then; weights are not covered by it"
        if wanted == self.content_hash:
            return "it is the hash of certificate.json: every file is that of then"
        raise DamagedError("neither the ledger's head nor the hash of certificate.json is the one given.")

    # --- helpers ----------------------------------------------------------------------------------

    def need(self, value: T | None, otherwise: str) -> T:
        if value is None:
            raise Outcome("not tried", otherwise)
        return value

    @property
    def stated(self) -> dict[str, Any]:
        return self.need(self.certificate, "there is no certificate to compare with")

    def need_both(self) -> tuple[Plan, Ledger]:
        plan = self.need(self.plan, "the plan cannot be read")
        return plan, self.need(self.ledger, "the ledger cannot be read")

    def need_agreeing(self) -> tuple[Plan, Ledger]:
        both = self.need_both()
        if not self.agrees:
            raise Outcome("not tried", "the ledger does not agree with the plan")
        return both

    def refuse(self, word: str, *reasons: str) -> None:
        """A fault, unless the caller accepts runs of this kind."""
        raise Outcome("accepted" if word in self.accept else "failed", *reasons)
