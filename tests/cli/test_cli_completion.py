"""Completion: what the shells ask for, quick, and the scripts that ask."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from cli_helpers import Inside

from saltflat.cli.app import COMMANDS
from saltflat.cli.known import MODELS, OPTIMIZERS, run_folders


def completed(*words: str, shell: str = "bash", cwd: Path | None = None, **more: str) -> list[str]:
    """What the shell is told when the last of the words is being typed."""
    asked = {"_SALTFLAT_COMPLETE": f"{shell}_complete", "COMP_WORDS": shlex.join(["saltflat", *words])}
    asked["COMP_CWORD"] = words[-1] if shell == "fish" else str(len(words))
    if not words[-1]:
        asked["COMP_WORDS"] = shlex.join(["saltflat", *words[:-1]]) + " "
    done = subprocess.run(
        [sys.executable, "-m", "saltflat"],
        capture_output=True, text=True, cwd=cwd, env=os.environ | asked | more, timeout=300,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def plain(*words: str, cwd: Path | None = None, **more: str) -> list[str]:
    """The values that bash is offered."""
    return [line.removeprefix("plain,") for line in completed(*words, cwd=cwd, **more) if line]


def test_names_are_those_that_are_known() -> None:
    """Fails when a model is added and not written down for the shells."""
    from saltflat.methods.optimizers import REGISTRY
    from saltflat.models import names as model_names

    assert list(MODELS) == model_names()
    assert set(OPTIMIZERS) == set(REGISTRY)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("tr",), ["train"]),
        (("data", "de"), ["describe"]),
        (("train", "--meth"), ["--method"]),
        (
            ("train", "--method", "dp-sat+"),
            [f"dp-sat+{suffix}" for suffix in ("ema", "swa", "adam", "adam-bc", "dope", "mirror", "ada")],
        ),
        (("compare", "--methods", "dp-sgd,sai+e"), ["dp-sgd,sai+ema"]),
        (("train", "--data", "fash"), ["fashion-mnist"]),
        (("data", "fetch", "cifar"), ["cifar10", "cifar100"]),
        (("train", "--model", "dpnas-"), ["dpnas-cifar", "dpnas-fmnist", "dpnas-mnist"]),
        (("models", "wrn"), ["wrn-16-4"]),
        (("train", "--randomness", "s"), ["secure"]),
        (("train", "--optimizer", "adam"), ["adam", "adam-bc", "adamw"]),
        (("bench", "--sections", "engines,m"), ["engines,methods", "engines,memory"]),
        (("train", "--augmentations", "flip,c"), ["flip,crop", "flip,cutout"]),
        (("completion", ""), ["bash", "zsh", "fish"]),
        (("no-such-command", "x"), []),
        (("train", "--data", "my-ta"), ["file,my-ta"]),
    ],
)
def test_what_bash_is_offered(words: tuple[str, ...], expected: list[str], tmp_path: Path) -> None:
    assert plain(*words, cwd=tmp_path) == expected


def test_the_top_offers_every_command(tmp_path: Path) -> None:
    assert plain("", cwd=tmp_path) == list(COMMANDS)


def test_zsh_and_fish_get_words_beside_the_names(tmp_path: Path) -> None:
    assert completed("tr", shell="zsh", cwd=tmp_path) == ["plain", "train", COMMANDS["train"]]
    fish = "\n".join(completed("tr", shell="fish", cwd=tmp_path))
    assert "plain" in fish
    assert "train" in fish


def test_run_folders_and_accounts(tmp_path: Path) -> None:
    for name in ("runs/a", "runs/compared/dp-sgd-seed0", "elsewhere", ".hidden/a", "runs/not-a-run"):
        (tmp_path / name).mkdir(parents=True)
        if "not" not in name:
            (tmp_path / name / "plan.json").touch()
    found = ["elsewhere", "runs/a", "runs/compared/dp-sgd-seed0"]
    for words in (("verify", ""), ("sign", ""), ("evaluate", ""), ("audit", ""), ("train", "--resume", "")):
        assert plain(*words, cwd=tmp_path) == found
    assert plain("verify", "runs/c", cwd=tmp_path) == ["runs/compared/dp-sgd-seed0"]
    assert completed("verify", "zzz", cwd=tmp_path) == ["dir,zzz"]
    assert run_folders(f"{tmp_path}/runs/") == [
        f"{tmp_path}/runs/a",
        f"{tmp_path}/runs/compared/dp-sgd-seed0",
    ]
    (tmp_path / "visits.jsonl").touch()
    accounts = {"SALTFLAT_BUDGETS": str(tmp_path)}
    assert plain("budget", "show", "v", cwd=tmp_path, **accounts) == ["visits"]
    assert plain("train", "--account", "v", cwd=tmp_path, **accounts) == ["visits"]


HEAVY = {"torch", "scipy", "dp_accounting", "sklearn", "rich", "matplotlib"}


@pytest.mark.parametrize(
    "words",
    ["", "train --method ", "train --data ", "train --model ", "verify ", "train --account ", "data "],
)
def test_a_completion_imports_nothing_heavy(words: str, tmp_path: Path) -> None:
    """So that it is quick: numpy, which readers of data sets need, takes a tenth of a second.

    Fails when the names are asked of `saltflat.models` (tried).
    """
    code = (
        "import sys\nfrom saltflat.cli import main\ntry:\n    main()\nexcept SystemExit:\n    pass\n"
        f"print('heavy:', sorted({HEAVY!r} & set(sys.modules)))"
    )
    asked = {
        "_SALTFLAT_COMPLETE": "bash_complete",
        "COMP_WORDS": f"saltflat {words}",
        "COMP_CWORD": str(len(f"saltflat {words}".split())),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=os.environ | asked
    )
    assert done.stdout.splitlines()[-1] == "heavy: []", done


def test_a_real_bash_completes(tmp_path: Path) -> None:
    """The script that is printed, sourced, and asked as bash asks it."""
    command = tmp_path / "bin" / "saltflat"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m saltflat "$@"\n')
    command.chmod(0o755)
    script = (
        'eval "$(saltflat completion bash)"\n'
        "complete -p saltflat\n"
        "COMP_WORDS=(saltflat train --method dp-sat-); COMP_CWORD=3\n"
        "_saltflat_completion saltflat\n"
        'echo "found: ${COMPREPLY[*]}"\n'
    )
    path = {"PATH": f"{command.parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "--norc", "-c", script], capture_output=True, text=True, cwd=tmp_path, env=os.environ | path
    )
    assert "-F _saltflat_completion saltflat" in done.stdout, done
    assert "found: dp-sat-early-stop" in done.stdout


@pytest.mark.parametrize(
    ("shell", "words"),
    [("bash", "complete -o"), ("zsh", "#compdef saltflat"), ("fish", "complete --no-files")],
)
def test_the_scripts(shell: str, words: str, run: Inside) -> None:
    code, out, err = run("completion", shell)
    assert (code, err) == (0, "")
    assert words in out
    assert "_SALTFLAT_COMPLETE" in out
    assert "saltflat completion" in run("completion", "--help")[1]


def test_other_shells_are_refused(run: Inside) -> None:
    err = run.refused("completion", "tcsh")
    assert "'tcsh' is not one of 'bash', 'zsh', 'fish'" in err
    assert "See: saltflat completion --help" in err
