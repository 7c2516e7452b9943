"""``saltflat federate --engine flower``: what is refused before a process starts, and the app that it writes."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import Inside

import saltflat as sf

QUICK = (
    "--clients", "12", "--rate", "0.5", "--rounds", "2", "--noise-multiplier", "1", "--local-epochs", "1",
)  # fmt: skip
FLOWER = ("--engine", "flower")


def no_process(*_: Any, **__: Any) -> None:
    raise AssertionError("a process was about to be started")


def test_without_flower_it_says_what_to_install(run: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("saltflat.federated.flower.job.find_spec", lambda name: None)
    assert "pip install 'saltflat[federated]'" in run.refused("federate", *QUICK, *FLOWER)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((*FLOWER, "--nodes", "0"), "nodes=0"),
        ((*FLOWER, "--nodes", "13"), "nodes <= 12"),
        ((*FLOWER, "--timeout", "-1"), "timeout=-1"),
        ((*FLOWER, "--together", "0"), "together=0"),
        ((*FLOWER, "--survivors", "3"), "secure aggregation"),
        (("--nodes", "2"), "nodes=2"),
        (("--timeout", "2"), "timeout=2"),
        (("--app", "there"), "--engine flower"),
    ],
)
def test_bad_input_starts_nothing(
    arguments: tuple[str, ...], says: str, run: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'saltflat[federated]'")
    monkeypatch.setattr("saltflat.cli.flower_run.Deployment", no_process)
    assert says in run.refused("federate", *QUICK, *arguments)


def test_the_app_for_a_deployment(run: Inside) -> None:
    """It holds the solved plan and the words, and no rows; the folder is not written twice."""
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'saltflat[federated]'")
    from saltflat.federated.flower import Job

    line = ("federate", *QUICK, *FLOWER, "--app", "there", "--out", "/srv/run", "--json")
    assert run.answer(*line) == {"app": "there"}
    about = tomllib.loads(Path("there/pyproject.toml").read_text())["tool"]["flwr"]["app"]
    for place in about["components"].values():
        module, _, name = place.partition(":")
        assert getattr(__import__(module, fromlist=[name]), name) is not None
    job = Job.read(about["config"])
    assert job.plan.is_solved
    assert (job.words["nodes"], job.words["out"], job.words["data"]) == (12, "/srv/run", "digits")
    assert sum(p.numel() for p in job.model().parameters()) == sum(
        p.numel() for p in sf.models.build("mlp", classes=10, in_features=64).parameters()
    )
    code, _, err = run(*line)
    assert (code, "is there already" in err) == (2, True)
