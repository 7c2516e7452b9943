"""``saltflat federate``, from the command line to the run folder."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest
from cli_helpers import Inside, killed_after
from PIL import Image

import saltflat as sf

QUICK = (
    "--clients", "60", "--rate", "0.3", "--rounds", "4", "--noise-multiplier", "0.8", "--local-epochs", "1",
)  # fmt: skip


@pytest.mark.slow
def test_a_budget_in_and_a_verified_folder_out(run: Inside, tmp_path: Path) -> None:
    out = tmp_path / "run"
    found = run.answer(
        "federate", "--data", "digits", "--model", "mlp", "--method", "dp-fedsam+ema", "--rho", "0.05",
        "--clients", "100", "--rate", "0.4", "--rounds", "30", "--epsilon", "10", "--clip-norm", "0.6",
        "--local-batch-size", "8", "--partition", "dirichlet", "--out", str(out), "--json",
    )  # fmt: skip
    assert found["accuracy"] > 0.75
    assert 9.9 < found["epsilon"] <= 10.0
    wanted = {
        "unit": "client",
        "clients": 100,
        "rounds": 30,
        "rate": 0.4,
        "partition": "dirichlet",
        "engine": "simulation",
    }
    assert {key: found[key] for key in wanted} == wanted
    assert found["average_accuracy"] is not None
    assert sf.verify(out).passed


def test_every_word_of_a_run_file(run: Inside) -> None:
    Path("run.toml").write_text(
        'method = "fed-smp-topk"\nratio = 0.3\nclients = 60\nrate = 0.3\nrounds = 3\nnoise-multiplier = 1.0\n'
        'partition = "dirichlet"\nalpha = 0.3\nlocal-epochs = 1\nlocal-momentum = 0.0\ndiagnostics = true\n'
    )
    found = run.answer("federate", "run.toml", "--out", "here", "--json", "--picture", "mix.png")
    assert found["released"] == "the top 30% of earlier releases"
    assert found["diagnostics"]["label"] == "not covered by ε"
    assert found["diagnostics"]["mean_update_norm"] > 0
    assert Path("mix.png").exists()
    plan = sf.Plan.load("here/plan.json")
    assert plan.federation.local.momentum == 0.0
    Path("wrong.toml").write_text('metod = "x"\nrounds = "many"\n')
    err = run.refused("federate", "wrong.toml")
    assert "metod" in err
    assert "rounds" in err


def test_what_is_printed_says_what_is_covered(run: Inside) -> None:
    code, out, err = run("federate", *QUICK, "--out", "here", "--diagnostics")
    assert code == 0
    assert "for each client" in out
    assert "(not covered by ε)" in out
    assert "diagnostics, not covered by ε" in out
    assert "4 rounds over Poisson" in err


def test_a_column_of_the_data_names_the_clients(run: Inside) -> None:
    """Their number is read from the data, so it counts as public."""
    rows = "\n".join(f"{i % 7},{(i * 3) % 5},{i % 2},h{i % 23}" for i in range(230))
    Path("visits.csv").write_text(f"a,b,outcome,hospital\n{rows}\n")
    found = run.answer(
        "federate", "--data", "visits.csv", "--label", "outcome", "--group", "hospital", "--rate", "0.3",
        "--rounds", "2", "--noise-multiplier", "1", "--out", "here", "--json",
    )  # fmt: skip
    assert (found["relation"], found["partition"]) == ("zero-out", "column")
    assert 10 < found["clients"] <= 23


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--method", "dp-fedavgg"), "Did you mean 'dp-fedavg'"),
        (("--method", "dp-fedavg", "--rho", "0.1"), "--rho"),
        (("--clients", "5000"), "more than there are rows"),
        (("--rate", "2"), "rate=2"),
        (("--partition", "column"), "column is missing"),
        (("--public-fraction", "0.1"), "public_fraction=0.1"),
        (("--survivors", "900"), "survivors=900"),
        (("--picture", "mix.docx"), ".png"),
        (("--resume", "nowhere"), "holds no run"),
    ],
)
def test_bad_input_is_a_sentence(arguments: tuple[str, ...], says: str, run: Inside) -> None:
    assert says in run.refused("federate", *arguments)


@pytest.mark.slow
def test_a_killed_run_goes_on_with_its_own_options(run: Inside, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [sys.executable, "-m", "saltflat", "federate", *QUICK, "--rounds", "60", "--out", str(out)]
    killed_after(9, command, out, signal.SIGKILL)
    found = run.answer("federate", "--resume", str(out), "--clients", "60", "--json")
    assert found["rounds"] == 60
    assert sf.verify(out).passed
    again = run.answer("federate", "--resume", str(out), "--json")
    assert again["accuracy"] == found["accuracy"]


def test_resuming_refuses_what_differs_and_other_kinds_of_runs(run: Inside) -> None:
    assert run("federate", *QUICK, "--out", "here", "--quiet")[0] == 0
    code, _, err = run("federate", "--resume", "here", "--alpha", "0.1")
    assert (code, "alpha=0.1 differs" in err) == (2, True)
    train = ("train", "--noise-multiplier", "4", "--delta", "1e-4", "--steps", "2", "--batch-size", "64")
    assert run(*train, "--out", "rows", "--quiet")[0] == 0
    code, _, err = run("federate", "--resume", "rows")
    assert (code, "holds a run over rows" in err) == (2, True)


def test_masks_from_public_rows(run: Inside) -> None:
    code, out, err = run(
        "federate", *QUICK, "--method", "dp-fedsam-topk", "--public-fraction", "0.1", "--out", "here", "--json",
    )  # fmt: skip
    assert code == 0, err
    assert json.loads(out)["released"] == "the top 40% on public data"


def test_images_of_several_sizes_are_brought_to_one(run: Inside) -> None:
    """Fails when only the commands of central training read the option (tried)."""
    for number in range(12):
        place = Path("scans", "low" if number < 6 else "high")
        place.mkdir(parents=True, exist_ok=True)
        Image.new("L", (9 + number, 8), 20 * number).save(place / f"{number}.png")
    words = ("--data", "scans", "--clients", "6", "--rate", "0.5", "--rounds", "1", "--noise-multiplier", "2")
    assert "--image-size" in run.refused("federate", *words, "--delta", "0.01", "--out", "run")
    run.answer("federate", *words, "--delta", "0.01", "--image-size", "8", "--out", "run", "--json")
