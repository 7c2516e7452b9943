"""The whole recipe, one stage after the other, each kept on disk: give the same call again to go on.

| stage | what it leaves in the folder |
|---|---|
| settings | `recipe.json`: everything that was asked for, and the hash of the public rows |
| diffusion | `diffusion/`: a model of the public rows, by `saltflat.synthesis` |
| samples | `samples.npz` |
| warm-up | `warm-up.safetensors`: the weights, the losses and the public data that was seen |
| | `warm-up-state.safetensors`: after each epoch, until it is done |
| run | `run/`: the private training, an ordinary run folder |
| report | `report.html`, by `saltflat.report` |

Only the run touches private rows. All other stages may be repeated at no cost.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from saltflat import plans
from saltflat.data import DataSet, load
from saltflat.data.shared_rows import refuse_shared_rows, rows_hash, separated
from saltflat.data.source import Examples
from saltflat.data.split import PUBLIC_FRACTION
from saltflat.errors import InputError, PrivacyWarning
from saltflat.models.registry import build_for
from saltflat.plan import Ema, Multiplicity, Plan
from saltflat.public.own_rows import read_public, read_samples
from saltflat.public.scenarios import check_scenario, seen_data, shown_data
from saltflat.public.warm_up import WarmUp, warm_up
from saltflat.record.atomic import write_whole
from saltflat.record.canonical import DamagedError, parsed, spelled
from saltflat.record.packed import packed, unpacked
from saltflat.training.fit import fit
from saltflat.training.progress import NotedBar
from saltflat.training.run import Run

SETTINGS, SAMPLES, WARM_UP, WARM_UP_STATE, RUN, REPORT = (
    "recipe.json", "samples.npz", "warm-up.safetensors", "warm-up-state.safetensors", "run", "report.html",
)  # fmt: skip
STAGES = ("diffusion", "samples", "warm-up", "run", "report")
FORMAT = 1

Announce = Callable[[str], None]


@dataclass(frozen=True)
class Recipe:
    """What the recipe does, as a value. The defaults are the paper's: WRN-16-4, 16 views, an average, 50,000 samples.

    ``plan`` holds arguments of the method (`saltflat.plans`): what is not said there comes from the paper for
    wrn-16-4 at its budgets, and otherwise from its proportions. ``synthesis`` holds settings of the diffusion
    model: ``size``, ``steps``, ``batch_size``. ``samples`` is a file to use instead of making one. ``public`` names
    public data of your own, on the word of ``public_by``: then nothing is split off.

    >>> Recipe(epsilon=2.0).method, Recipe(scenario="warm").method
    ('weight-multiplicity', 'dp-sgd')
    """

    data: str = "cifar10"
    model: str = "wrn-16-4"
    epsilon: float = 2.0
    delta: float = 1e-5
    scenario: str = "extended"
    method: str = ""
    public_fraction: float = PUBLIC_FRACTION
    public_seed: int = 0
    public: str | None = None
    public_by: str | None = None
    plan: Mapping[str, Any] = field(default_factory=dict)
    warm_up: WarmUp = field(default_factory=lambda: WarmUp("sam", augmentations=("crop", "flip", "cutout")))
    synthesis: Mapping[str, Any] = field(default_factory=dict)
    samples: str | None = None
    count: int = 50_000
    guidance: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        if not self.method:
            usual = "weight-multiplicity" if self.scenario == "extended" else "dp-sgd"
            object.__setattr__(self, "method", usual)

    def to_dict(self) -> dict[str, Any]:
        """As plain data: what a folder must agree with when the recipe goes on."""
        plain = {
            key: value for key, value in vars(self).items() if key not in ("plan", "warm_up", "synthesis")
        }
        given = {
            key: value if isinstance(value, int | float | str) else str(value)
            for key, value in self.plan.items()
        }
        return plain | {
            "plan": given, "warm_up": self.warm_up.to_dict(), "synthesis": dict(self.synthesis),
        }  # fmt: skip


def recipe(
    out: str | Path,
    settings: Recipe | None = None,
    *,
    data: DataSet | None = None,
    data_dir: str | Path | None = None,
    device: str | None = None,
    announce: Announce | None = None,
    progress: bool | None = None,
    until: str = "report",
) -> Run | None:
    """Public split, diffusion model, samples, warm-up, private training and report, in the folder ``out``.

    Called again with the same settings it goes on where it was cut off; with others it refuses. ``data`` is a data
    set with a public part, for one that `load` cannot split by name. ``until`` names the last stage to run.
    Returns the run, or None if it was not reached.

    Guarantees: those of `fit` for the run; no other stage sees a private row. Samples that were made from rows
    which are private here are refused, and so is a private row among public or synthetic ones.

    Reference: *Improving Private Training via In-distribution Public Data Synthesis and Generalization*, with the
    ingredients of De et al. 2022.

    >>> import saltflat as sf, tempfile
    >>> quick = Recipe("digits", "mlp", epsilon=8.0, delta=1e-4, scenario="warm", public_fraction=0.2,
    ...                warm_up=WarmUp(epochs=2), plan={"steps": 3, "batch_size": 128})
    >>> run = recipe(tempfile.mkdtemp() + "/recipe", quick, progress=False, until="run")
    >>> round(run.epsilon, 1), run.plan.averaging
    (8.0, Ema(decay=0.9999))
    """
    settings = Recipe() if settings is None else settings
    if until not in STAGES:
        raise InputError("until", until, f"a stage among {', '.join(STAGES)}")
    kitchen = _Kitchen(Path(out), settings, device, announce or (lambda text: None), progress)
    kitchen.begin(_split(settings, data_dir) if data is None else data)
    return kitchen.cooked(until)


class _Kitchen:
    """The stages, each skipped if what it leaves is there."""

    def __init__(
        self, out: Path, settings: Recipe, device: str | None, announce: Announce, progress: bool | None
    ) -> None:
        self.out, self.settings, self.device = out, settings, device
        self.announce, self.progress = announce, progress

    def begin(self, data: DataSet) -> None:
        """Check everything that can be checked, and write down what will be done."""
        if data.public is None and self.settings.scenario != "cold":
            raise InputError("data", data.name, "data with a public part", problem="has none")
        self.data, self.public = data, data.public
        self.private: Examples = data.train if self.public is None else separated(data.train, self.public)
        # the initial weights are public, and the same again when the recipe goes on
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.settings.seed or 0)
            self.model = build_for(self.settings.model, tuple(data.train.inputs.shape[1:]), data.num_classes)
        self.plan = planned(self.settings, len(self.private))
        check_scenario(
            self.settings.scenario, self.plan, self.public, "made below" if self.needs_samples else None
        )
        public_hash = None if self.public is None else rows_hash(self.public.inputs, self.public.targets)
        told = {"format": FORMAT, "settings": self.settings.to_dict(), "public_sha256": public_hash}
        path = self.out / SETTINGS
        if path.exists():
            self.compare(parsed(path.read_bytes(), SETTINGS), told)
        else:
            self.out.mkdir(parents=True, exist_ok=True)
            write_whole(path, spelled(told))

    def compare(self, stored: Any, told: dict[str, Any]) -> None:
        """Refuse to go on with other settings, or other public rows, than the folder was begun with."""
        if not isinstance(stored, dict) or not isinstance(stored.get("settings"), dict):
            raise DamagedError(f"{SETTINGS} in {self.out} is not one of a recipe.")
        here = parsed(spelled(told), SETTINGS)  # as it would be read back
        for key, value in here["settings"].items():
            if stored["settings"].get(key) != value:
                raise InputError(
                    key, str(value), f"{stored['settings'].get(key)}, as the recipe in {self.out} was begun",
                    problem="differs from it", cure="Give it as before, or choose another folder.",
                )  # fmt: skip
        if stored.get("public_sha256") != here["public_sha256"]:
            raise InputError(
                "data", self.data.name, f"the public rows that the recipe in {self.out} was begun with",
                problem="has other public rows now",
            )  # fmt: skip

    @property
    def needs_samples(self) -> bool:
        return self.settings.scenario in ("warm-syn", "extended")

    def cooked(self, until: str) -> Run | None:
        """Every stage up to ``until``."""
        last = STAGES.index(until)
        synthetic = None
        if self.needs_samples:
            synthetic = self.samples(only_model=last == 0)
        if last <= 1:
            return None
        weights, listed = self.warmed_up(synthetic)
        if last == 2:
            return None
        self.model.load_state_dict(weights)
        run = self.trained(synthetic, listed)
        if last == 4:
            self.report()
        return run

    def samples(self, only_model: bool) -> Examples | None:
        path = Path(self.settings.samples) if self.settings.samples else self.out / SAMPLES
        assert self.public is not None
        if not path.exists() and self.settings.samples is None:
            self.synthesise(path, only_model)
            if only_model:
                return None
        samples = read_samples(path, self.private, self.public)
        refuse_shared_rows(self.private, samples, "synthetic")
        return samples

    def synthesise(self, path: Path, only_model: bool) -> None:
        from saltflat import synthesis

        assert self.public is not None
        folder, where = self.out / "diffusion", self.device or "cpu"
        wanted = dict(self.settings.synthesis)
        size = wanted.pop("size", _size_for(self.private))
        if synthesis.SynthesisFolder(folder).exists:
            self.announce("diffusion: going on")
            with self.watched("diffusion") as note:
                synthesis.resume(folder, steps=wanted.get("steps"), device=where, progress=note)
        else:
            self.announce(f"diffusion: a {size} model on {len(self.public):,} public rows")
            source: dict[str, Any] = {"data": self.settings.public}
            if self.settings.public is None:
                source = {
                    "public_fraction": self.settings.public_fraction, "public_seed": self.settings.public_seed,
                }  # fmt: skip
            settings = synthesis.settings_for(size, **wanted)
            with self.watched("diffusion") as note:
                synthesis.train(self.public, settings, out=folder, source=source, device=where, progress=note)
        if not only_model:
            self.announce(f"samples: {self.settings.count:,}")
            with self.watched("samples") as note:
                synthesis.sample(
                    folder, path, count=self.settings.count, guidance=self.settings.guidance, device=where,
                    progress=note,
                )  # fmt: skip

    @contextmanager
    def watched(self, stage: str) -> Iterator[Callable[..., None]]:
        """What a long stage reports to: a bar on a terminal, elsewhere a line for every tenth."""
        shown = sys.stderr.isatty() if self.progress is None else self.progress
        tenths = 0
        with NotedBar(stage, None, shown) as bar:

            def note(done: int, total: int, loss: float | None = None) -> None:
                nonlocal tenths
                words = "" if loss is None else f"loss {loss:.4f}"
                bar.update(completed=done, total=total, note=words)
                if not shown and done * 10 // total > tenths:
                    tenths = done * 10 // total
                    self.announce(f"{stage}: {done:,} of {total:,}{words and f', {words}'}")

            yield note

    def warmed_up(self, synthetic: Examples | None) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The weights after the warm-up, and what it saw; as they are in ``cold``."""
        shown = shown_data(self.settings.scenario, self.public, synthetic)
        if not shown:
            return self.model.state_dict(), []
        path = self.out / WARM_UP
        if path.exists():
            tensors, facts = unpacked(path.read_bytes(), str(path))
            return tensors, facts["public"]
        state = self.out / WARM_UP_STATE
        self.announce(
            f"warm-up: {'going on with ' if state.exists() else ''}{self.settings.warm_up.optimizer} "
            f"on {sum(map(len, shown)):,} public rows"
        )
        done = warm_up(
            self.model, *shown, settings=self.settings.warm_up, device=self.device, keep=state,
            watch=lambda epoch, epochs, loss: self.announce(f"warm-up: epoch {epoch} of {epochs}, loss {loss:.4f}"),
        )  # fmt: skip
        if not math.isfinite(done.losses[-1]):
            raise InputError(
                "learning_rate", self.settings.warm_up.learning_rate, "a warm-up that does not diverge",
                problem="is too large: the loss is not a number any more",
            )  # fmt: skip
        facts = {"losses": list(done.losses), "seconds": round(done.seconds, 3), "public": list(done.public)}
        tensors = {name: value.detach().cpu() for name, value in self.model.state_dict().items()}
        write_whole(path, bytes(packed(tensors, facts)))
        state.unlink(missing_ok=True)
        return tensors, list(done.public)

    def trained(self, synthetic: Examples | None, listed: list[dict[str, Any]]) -> Run:
        folder = self.out / RUN
        begun = (folder / "plan.json").exists()
        self.announce(
            f"private training: {'going on' if begun else self.plan.method}, ε = {self.settings.epsilon:g}"
        )
        where: dict[str, Any] = {"resume": folder} if begun else {"out": folder}
        facts = {"recipe": self.settings.to_dict()} | ({"public": listed} if listed else {})
        return fit(
            self.model, self.private, self.plan,
            evaluate=self.data.test, public=seen_data(self.settings.scenario, self.public, synthetic),
            device=self.device, seed=self.settings.seed, progress=self.progress, facts=facts, **where,
        )  # fmt: skip

    def report(self) -> None:
        from saltflat.report import write_report

        write_report([self.out / RUN], self.out / REPORT)
        self.announce(f"report: {self.out / REPORT}")


def planned(settings: Recipe, population: int) -> Plan:
    """The plan of a recipe for ``population`` declared rows."""
    given = dict(settings.plan)
    usual: dict[str, Any] = {
        "clip_norm": 1.0, "learning_rate": 0.5, "momentum": 0.0, "averaging": Ema(0.9999),
        "multiplicity": Multiplicity(16, ("flip", "crop")),
    }  # fmt: skip
    if settings.model == "wrn-16-4" and settings.epsilon in (1, 2, 3, 4, 6):
        usual = {"preset": "paper", "model": settings.model}
    elif "steps" not in given:
        usual["epochs"] = 30.0
    if "batch_size" not in given and "preset" not in usual:
        usual["batch_size"] = max(16, round(0.085 * population))  # the paper's 4096 of 48,000
    if "optimizer" in given and given["optimizer"] != "sgd":
        usual.pop("momentum", None)
    common = {
        "epsilon": settings.epsilon, "delta": settings.delta, "population": population, "relation": "zero-out",
    }  # fmt: skip
    with warnings.catch_warnings(action="default", category=PrivacyWarning):
        return plans.by_name(settings.method, **usual | common | given)


def _split(settings: Recipe, data_dir: str | Path | None) -> DataSet:
    if settings.public_by is not None and settings.public is None:
        raise InputError(
            "public_by", settings.public_by, "public data beside it", problem="vouches for data that is not there",
            cure="Name it: public=, or --public PATH.",
        )  # fmt: skip
    if settings.scenario == "cold":
        return load(settings.data, data_dir=data_dir)
    if settings.public is not None:
        data = load(settings.data, data_dir=data_dir)
        return replace(
            data, public=read_public(settings.public, data, by=settings.public_by, data_dir=data_dir)
        )
    return load(
        settings.data,
        data_dir=data_dir,
        public_fraction=settings.public_fraction,
        seed=settings.public_seed,
    )


def _size_for(rows: Examples) -> str:
    """The size of the diffusion model that suits images of this size, on a CPU or a GPU."""
    side = int(rows.inputs.shape[-1])
    return "tiny" if side < 16 else "full" if side >= 32 and torch.cuda.is_available() else "small"
