"""Runs with public data: scenarios, what the certificate says, resuming, and rows that are on the wrong side."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from public_helpers import small_public

import saltflat as sf
from core_helpers import small_data, small_net, weights_of
from saltflat.data.shared_rows import rows_hash
from saltflat.data.source import Examples
from saltflat.errors import InputError
from saltflat.plan import Dope, Multiplicity, Plan
from saltflat.public import SCENARIOS, WarmUp, apart, declared, read_samples

COMMON: dict[str, Any] = {
    "population": 40, "batch_size": 8, "steps": 6, "delta": 1e-3, "noise_multiplier": 3.0, "learning_rate": 0.2,
}  # fmt: skip
QUICK = WarmUp(epochs=2, batch_size=8)


def made() -> Examples:
    return replace(small_public(30, 11), provenance="synthetic", name="made", declared_by="a diffusion model")


def plan_for(scenario: str) -> Plan:
    if scenario == "extended":
        return sf.plans.weight_multiplicity(rho=0.1, public_batch=5, multiplicity=Multiplicity(2), **COMMON)
    return sf.plans.dp_sgd(**COMMON)


def trained(scenario: Any, **options: Any) -> sf.Run:
    settings = {"public": small_public(), "synthetic": made(), "settings": QUICK, "progress": False} | options
    plan = settings.pop("plan", plan_for(scenario))
    data = settings.pop("data", small_data())
    model = small_net().to(data.inputs.dtype)
    return sf.public.train(model, data, plan, scenario=scenario, **settings)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_each_scenario_lists_what_it_used(scenario: str, tmp_path: Path) -> None:
    """And verifies; public data costs nothing, so ε is that of the plan."""
    run = trained(scenario, out=tmp_path / "run", evaluate=small_data(9, 1))
    assert run.epsilon == sf.plans.dp_sgd(**COMMON).epsilon
    used = [
        (entry["used"], entry["name"], entry["provenance"])
        for entry in run.certificate.data.get("public", [])
    ]
    public, synthetic = ("warm-up", "small", "public"), ("warm-up", "made", "synthetic")
    both = ("gradients in every private step", "small + made", "synthetic")
    expected = {
        "cold": [], "warm": [public], "warm-syn": [public, synthetic], "extended": [public, synthetic, both],
    }  # fmt: skip
    assert used == expected[scenario]
    assert sf.verify(tmp_path / "run").passed
    words = str(run.certificate)
    page = (tmp_path / "run" / "certificate.html").read_text(encoding="utf-8")
    for text in (words, page):
        assert ("on the word of the tests" in text) == (scenario != "cold")
    assert ("declared public are not protected" in words) == (scenario != "cold")


def test_who_vouched_cannot_be_changed_afterwards(tmp_path: Path) -> None:
    trained("warm", out=tmp_path / "run")
    path = tmp_path / "run" / "run.json"
    path.write_text(path.read_text().replace("the tests", "the press"))
    found = sf.verify(tmp_path / "run")
    assert not found.passed
    assert {f.name for f in found.findings if f.status == "failed"} == {"files", "claims"}


def test_a_warm_up_is_where_the_private_training_starts() -> None:
    """With noise but without learning, the weights stay where the warm-up left them."""
    plan = sf.plans.dp_sgd(**COMMON | {"learning_rate": 1e-12, "steps": 1})
    model = small_net()
    sf.public.warm_up(model, small_public(), settings=QUICK)
    run = trained("warm", plan=plan)
    for ours, expected in zip(weights_of(run.model), weights_of(model)):
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("scenario", "options", "words"),
    [
        ("warm", {"public": None}, "public is missing"),
        ("warm-syn", {"synthetic": None}, "synthetic is missing"),
        ("extended", {"public": None, "synthetic": None}, "is missing"),
        ("extended", {"plan": sf.plans.dp_sgd(**COMMON)}, "does not go with dp-sgd"),
        ("warm", {"plan": sf.plans.dope_sgd(**COMMON)}, "does not go with dope-sgd"),
        ("lukewarm", {}, "one of cold, warm, warm-syn, extended"),
        ("warm", {"public": small_data(9, 4)}, "marked private"),
        ("warm-syn", {"synthetic": small_data(9, 4)}, "marked private"),
    ],
)
def test_what_does_not_go_together_is_refused(scenario: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        trained(scenario, **options)


@pytest.mark.parametrize("public", [None, small_data(9, 4), 3])
def test_fit_needs_public_data_for_such_a_plan(public: Any) -> None:
    with pytest.raises(InputError):
        sf.fit(small_net(), small_data(), sf.plans.dope_sgd(**COMMON), public=public, progress=False)


def test_public_rows_of_another_form_are_refused_before_the_first_release(tmp_path: Path) -> None:
    wrong = declared((torch.zeros(5, 7, dtype=torch.float64), torch.zeros(5, dtype=torch.long)), by="me")
    with pytest.raises(InputError, match="public="):
        sf.fit(small_net(), small_data(), sf.plans.dope_sgd(**COMMON), public=wrong, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_audit_says_what_it_does_not_cover() -> None:
    with pytest.raises(InputError, match="also looks at public data"):
        sf.audit.run(small_net(), small_data(), sf.plans.dope_sgd(**COMMON), quick=True)


# --- rows on the wrong side ------------------------------------------------------------------------------


def test_a_private_row_in_the_public_set_is_caught() -> None:
    """Meant to fail when only whole data sets are compared."""
    private = small_data()
    slipped = replace(
        small_public(),
        inputs=torch.cat([small_public().inputs[:-1], private.inputs[17:18]]),
        targets=1 + small_public().targets % 2,  # with other labels
    )
    with pytest.raises(InputError, match="holds a row of the private data") as found:
        sf.fit(small_net(), private, sf.plans.dope_sgd(**COMMON), public=slipped, progress=False)
    assert not re.search(r"\b17\b", str(found.value)), "which row it is stays private"
    rest = apart(private, slipped)
    assert len(rest) == 39
    assert not bool((rest.inputs == private.inputs[17]).all(1).any())
    assert apart(rest, slipped) is rest


def with_private_row(rows: Examples, private: Examples) -> Examples:
    """The rows, with one private row in the place of the last."""
    return replace(rows, inputs=torch.cat([rows.inputs[:-1], private.inputs[17:18]]))


@pytest.mark.parametrize("scenario", ["warm", "warm-syn", "extended"])
@pytest.mark.parametrize("argument", ["public", "synthetic"])
@pytest.mark.parametrize("form", ["examples", "a pair of tensors"])
def test_a_scenario_refuses_a_private_row(scenario: str, argument: str, form: str) -> None:
    """Before the warm-up sees it. Fails when rows are dropped, or samples not compared (as it once was)."""
    private = small_data()
    slipped = with_private_row(small_public() if argument == "public" else made(), private)
    given = private if form == "examples" else (private.inputs, private.targets)
    model = small_net()
    before = weights_of(model)
    with pytest.raises(InputError, match=rf"^{argument}=.* holds a row of the private data") as found:
        sf.public.train(
            model, given, plan_for(scenario), scenario=scenario, settings=QUICK, progress=False,
            **{"public": small_public(), "synthetic": made()} | {argument: slipped},
        )  # fmt: skip
    assert not re.search(r"\b17\b|\b1\b", str(found.value)), "which row it is, and how many, stays private"
    assert all(torch.equal(a, b) for a, b in zip(before, weights_of(model)))


def doubled(tmp_path: Path, **options: Any) -> sf.data.DataSet:
    """A file that holds every row twice, with a public part that `load` split off."""
    rows = small_data(20)
    np.savez(tmp_path / "twice.npz", X=rows.inputs.repeat(2, 1).numpy(), y=rows.targets.repeat(2).numpy())
    return sf.data.load(tmp_path / "twice.npz", classes=3, public_fraction=0.3, **options)


@pytest.mark.parametrize("scenario", ["warm", "warm-syn", "extended"])
def test_copies_inside_a_data_set_leave_the_private_side(scenario: str, tmp_path: Path) -> None:
    """And that is said, without a count. Fails when a split of our own is refused like rows of the user's."""
    data = doubled(tmp_path)
    rest, samples = apart(data.train, data.public), replace(made(), inputs=made().inputs.float())
    assert 0 < len(rest) < len(data.train)
    plan = plan_for(scenario).changed(sampling=replace(plan_for(scenario).sampling, population=len(rest)))
    with pytest.warns(sf.PrivacyWarning, match="Copies of public rows are left out") as said:
        run = trained(scenario, data=data.train, public=data.public, plan=plan, synthetic=samples)
    assert len(said) == 1, "the rows are as many as the plan declares"
    assert not re.search(r"\d", str(said[0].message))
    assert run.certificate.data["public"][0]["rows"] == len(data.public)


def test_a_split_that_was_changed_is_not_one_of_ours(tmp_path: Path) -> None:
    """Other rows, other words or another seed. Fails when a split is known by its name or its words (tried)."""
    data, other = doubled(tmp_path), doubled(tmp_path, seed=1)
    whole = sf.data.load(tmp_path / "twice.npz", classes=3)
    everything = sf.data.load(tmp_path / "twice.npz", classes=3, provenance="public")
    for private, public in (
        (data.train, with_private_row(data.public, data.train)),
        (data.train, other.public),
        (data.train, everything.train),
        (whole.train, data.public),
    ):
        with pytest.raises(InputError, match="holds a row of the private data"):
            trained("warm", data=private, public=public)
    with pytest.warns(sf.PrivacyWarning):
        trained("warm", data=data.train, public=replace(data.public, declared_by="the clinics"))


def samples_file(path: Path, public: Examples | None, name: str = "digits") -> Path:
    told = {}
    if public is not None:
        told = {
            "made_from": np.array(
                json.dumps({"public": {"name": name, "sha256": rows_hash(public.inputs, public.targets)}})
            )
        }
    images = np.random.default_rng(0).integers(0, 255, (40, 1, 8, 8)).astype(np.uint8)
    np.savez(path, X=images, y=np.arange(40) % 10, provenance=np.array("synthetic-from-public"), **told)
    return path


def test_samples_of_another_split_are_refused(tmp_path: Path) -> None:
    """They were made from rows that are private now. Meant to fail when only the name is compared."""
    ours, theirs = (sf.data.load("digits", public_fraction=0.2, seed=seed) for seed in (0, 1))
    good = samples_file(tmp_path / "good.npz", ours.public)
    bad = samples_file(tmp_path / "bad.npz", theirs.public)
    other = samples_file(tmp_path / "other.npz", theirs.public, "another data set")
    silent = samples_file(tmp_path / "silent.npz", None)
    found = read_samples(good, ours.train, ours.public)
    assert (found.provenance, found.name, len(found)) == ("synthetic", "samples from digits", 40)
    with pytest.raises(InputError, match="other rows of digits, which are private now"):
        read_samples(bad, ours.train, ours.public)
    assert read_samples(other, ours.train, ours.public).name == "samples from another data set"
    assert "does not say" in read_samples(silent, ours.train).declared_by
    with pytest.raises(InputError, match="samples of shape"):
        read_samples(good, sf.data.Examples(torch.zeros(2, 1, 9, 9), torch.zeros(2), num_classes=10))


# --- resume ----------------------------------------------------------------------------------------------

PLANS = {
    "weight multiplicity": sf.plans.weight_multiplicity(
        public_batch=5, multiplicity=Multiplicity(2), **COMMON
    ),
    "dope": sf.plans.dope_sgd(public_batch=5, **COMMON),
    "mirror descent, adam": sf.plans.by_name(
        "dp-sgd+adam-bc+mirror", **{k: v for k, v in COMMON.items() if k != "learning_rate"}
    ),
    "ada-dps": sf.plans.ada_dps(public_batch=5, **COMMON),
    "sai, dope": sf.plans.by_name("sai+dope+ema", rho=0.1, **COMMON),
}


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("every", [0.0, 1e9])
def test_a_run_that_was_cut_off_ends_in_the_same_weights(name: str, every: float, tmp_path: Path) -> None:
    """From a checkpoint, and from the journal alone. Fails when AdaDPS starts from later weights (seen)."""

    def stop(step: Any) -> None:
        if step.number == 3:
            raise KeyboardInterrupt

    settings: dict[str, Any] = {"public": small_public(), "progress": False}
    whole = sf.fit(small_net(), small_data(), PLANS[name], seed=3, **settings)
    with pytest.raises(KeyboardInterrupt):
        sf.fit(small_net(), small_data(), PLANS[name], seed=3, out=tmp_path / "run", callbacks=[stop],
               checkpoint_every=every, **settings)  # fmt: skip
    run = sf.fit(small_net(seed=8), small_data(), resume=tmp_path / "run", **settings)
    for a, b in zip(weights_of(run.model), weights_of(whole.model)):
        assert torch.equal(a, b)
    assert sf.verify(tmp_path / "run", accept=["not-private"]).passed


def test_other_public_data_is_refused_when_a_run_goes_on(tmp_path: Path) -> None:
    """One changed number is enough."""

    def stop(step: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained("extended", out=tmp_path / "run", callbacks=[stop])
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    changed = small_public()
    changed.inputs[3, 1] += 1e-6
    for public in (changed, small_public(23)):
        with pytest.raises(InputError, match=r"public=.*differs from the run that is to go on"):
            trained("extended", public=public, resume=tmp_path / "run")
    with pytest.raises(InputError, match="public is missing"):
        sf.fit(small_net(), small_data(), resume=tmp_path / "run")
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before
    run = trained("extended", resume=tmp_path / "run")
    assert [entry["used"] for entry in run.certificate.data["public"]] == [
        "warm-up", "warm-up", "gradients in every private step",
    ]  # fmt: skip


def test_the_stream_of_public_rows_does_not_depend_on_private_data(tmp_path: Path) -> None:
    """Two private sets, the same public rows in every step."""
    from saltflat.training import public_side

    drawn: list[list[list[int]]] = []
    original = public_side.PublicSide.gradient
    try:
        for seed in (0, 1):
            seen: list[list[int]] = []
            public_side.PublicSide.gradient = (  # type: ignore[method-assign]
                lambda self, rows, seen=seen: (seen.append(rows.tolist()), original(self, rows))[1]
            )
            plan = sf.plans.dp_sgd(**COMMON).changed(public_gradient=Dope(5))
            sf.fit(small_net(), small_data(40, seed), plan, public=small_public(), progress=False)
            drawn.append(seen)
    finally:
        public_side.PublicSide.gradient = original  # type: ignore[method-assign]
    assert drawn[0] == drawn[1]
    assert len({tuple(rows) for rows in drawn[0]}) == 6
