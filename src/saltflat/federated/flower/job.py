"""What a Flower run is told: a plan, a model and words, as the flat values of its run configuration; the folder that
`flwr run` takes, with one pyproject.toml that names our apps and holds the job; and whether Flower is there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tomli_w
from torch import nn

from saltflat import __version__
from saltflat.data import DataSet
from saltflat.errors import InputError, MissingDependencyError
from saltflat.federated.clients import Clients, clients_for, load_rows
from saltflat.models import build
from saltflat.plan import Plan

WORDS = (
    "data", "data_dir", "label", "group", "image_size", "public_fraction", "clients", "partition", "alpha",
    "partition_seed", "nodes", "timeout", "together", "out", "resume", "seed", "randomness", "device", "account",
    "budgets", "checkpoint_every", "diagnostics", "population",
)  # fmt: skip
ALWAYS = ("data", "data_dir", "out", "resume")  # so that `flwr run --run-config` can set them
PATHS = ("data_dir", "out", "resume", "budgets")


@dataclass(frozen=True)
class Job:
    """One run on a network. ``words`` are those of the command line; server and nodes read the same ones.

    ``spec`` names a model of saltflat and its settings. ``report`` is a file on the server's machine that is told
    how the run ended, for the process that started it.

    >>> job = Job("plan", {"name": "mlp", "overrides": {}}, {"data": "digits", "clients": 10, "alpha": None})
    >>> Job.read(job.config()).words["clients"], "alpha" in job.config()
    (10, False)
    """

    plan_text: str
    spec: dict[str, Any]
    words: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    report: str = ""

    def config(self) -> dict[str, Any]:
        """Flat values, as `[tool.flwr.app.config]` takes them. A word that is not said is left out, or empty."""
        said: dict[str, Any] = {word.replace("_", "-"): "" for word in ALWAYS}
        for word, value in self.words.items():
            if word in WORDS and value is not None:
                said[word.replace("_", "-")] = str(value) if isinstance(value, Path) else value
        texts = {"plan": self.plan_text, "model": json.dumps(self.spec), "facts": json.dumps(self.facts)}
        return said | texts | ({"report": self.report} if self.report else {})

    @staticmethod
    def read(config: Mapping[str, Any]) -> Job:
        """The job that `config` describes; anything else is an `InputError`."""
        try:
            texts = {word: config[word] for word in ("plan", "model", "facts")}
            spec, facts = json.loads(texts["model"]), json.loads(texts["facts"])
        except (KeyError, ValueError, TypeError) as error:
            raise InputError(
                "config", type(error).__name__, "a configuration that saltflat federate --app wrote",
                problem=f"failed: {error}",
            ) from error  # fmt: skip
        named = {key.replace("-", "_"): value for key, value in config.items()}
        words = {word: named[word] for word in WORDS if named.get(word) not in (None, "")}
        return Job(texts["plan"], spec, words, facts, str(config.get("report", "")))

    @property
    def plan(self) -> Plan:
        """The plan, checked as any plan file is."""
        return Plan.from_toml(self.plan_text)

    def model(self) -> nn.Module:
        """The model, freshly initialised."""
        try:
            return build(self.spec["name"], **self.spec["overrides"])
        except (KeyError, TypeError) as error:
            raise InputError(
                "model", str(self.spec), "a model of saltflat", problem=f"failed: {error}"
            ) from error

    def data(self) -> DataSet:
        """The rows on this machine."""
        return load_rows(self.words)

    def clients(self, data: DataSet) -> Clients:
        """The rows of this machine, dealt out."""
        return clients_for(data, self.words)


def is_installed() -> bool:
    """Whether the package flwr can be imported."""
    return find_spec("flwr") is not None


def check_installed() -> None:
    """Say what to install where Flower is missing."""
    if not is_installed():
        raise MissingDependencyError("flwr", "rounds over a Flower network", "federated")


HOME = "saltflat.federated.flower"


def write_project(folder: str | Path, job: Job) -> Path:
    """Write the app of a job into a new folder; returns the folder.

    The code is that of the installed saltflat, on the server's machine and on every node; the folder holds the
    settings. It holds no rows.
    """
    where = Path(folder)
    try:
        if where.exists() and (not where.is_dir() or any(where.iterdir())):
            raise InputError(
                "app", str(where), "a new or empty folder for the Flower app", problem="is there already"
            )
        where.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            "app", str(where), "a folder that can be written to",
            problem=f"cannot be made ({error.strerror or error})",
        ) from error  # fmt: skip
    about: dict[str, Any] = {
        "project": {
            "name": "saltflat-run",
            "version": "1.0.0",
            "description": f"A run of saltflat {__version__} over clients",
            "license": "Apache-2.0",
            "dependencies": [f"saltflat[federated]=={__version__}"],
        },
        "tool": {
            "flwr": {
                "app": {
                    "publisher": "saltflat",
                    "components": {
                        "serverapp": f"{HOME}.server_app:app",
                        "clientapp": f"{HOME}.client_app:app",
                    },
                    "config": job.config(),
                }
            }
        },
    }
    (where / "pyproject.toml").write_text(tomli_w.dumps(about), encoding="utf-8")
    (where / "README.md").write_text(README, encoding="utf-8")
    return where


README = """# A run of saltflat on Flower

Start it with `flwr run . NAME --stream`, where NAME is a SuperLink of your Flower configuration. The words under
`[tool.flwr.app.config]` can be set anew: `flwr run . NAME --run-config "out='/srv/runs/first'"`.
"""
