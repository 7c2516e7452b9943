"""A command that ``torchrun`` started several times: who prints, how they meet, and how they end."""

from __future__ import annotations

import json
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import click

from saltflat.cli.words import painted, stopped_run
from saltflat.errors import InputError, LostRankError, SaltflatError

LOST = 1
"""The exit code of a run that lost a rank, and can go on."""

# what a launcher tells each process: torch.distributed's own words
LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def ranks_here() -> int:
    """How many ranks the launcher started, of which this process is one; 1 without a launcher.

    >>> ranks_here()
    1
    """
    if not all(word in os.environ for word in LAUNCHED):
        return 1
    size = os.environ["WORLD_SIZE"]
    return int(size) if size.isdigit() else 1


def rank_here() -> int:
    """Which rank this process is; 0 without a launcher."""
    return int(os.environ["RANK"]) if ranks_here() > 1 else 0


def check_alone(command: str) -> None:
    """Refuse a command that every rank would do all of."""
    if ranks_here() > 1 and "TORCHELASTIC_RUN_ID" in os.environ:  # not in what a rank starts by itself
        raise InputError(
            "nproc-per-node", ranks_here(), f"one process for saltflat {command}",
            problem="ranks would each do all of it", cure="torchrun is for: saltflat train",
        )  # fmt: skip


def device_here(device: str | None) -> str | None:
    """The device of this rank: of several on one machine, each takes the GPU of its own number.

    >>> device_here("cuda")
    'cuda'
    """
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if device == "cuda" and ranks_here() > 1 else device


@contextmanager
def together(options: dict[str, Any]) -> Iterator[None]:
    """Join the other ranks, if a launcher started several, and leave them in the end.

    Ranks other than the first are quiet; errors that rank 0 has as well are said by rank 0 alone.
    """
    if ranks_here() == 1:
        yield
        return
    import torch.distributed as dist

    from saltflat.ranks.group import patience
    from saltflat.ranks.stopping import ending_in_order

    on_gpu = str(options.get("device") or "cpu").startswith("cuda")
    if rank_here():
        options["quiet"], options["as_json"] = True, False
        warnings.simplefilter("ignore")
    with ending_in_order():
        try:
            _joined(dist, "cpu:gloo,cuda:nccl" if on_gpu and dist.is_nccl_available() else "gloo", patience())
            yield
        except (KeyboardInterrupt, LostRankError):
            if not rank_here():
                raise
            raise click.exceptions.Exit(LOST) from None
        except (SaltflatError, OSError) as error:
            if not rank_here():
                raise
            raise SaltflatError(f"rank {rank_here()}: {error}") from error
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()


def _joined(dist: Any, backend: str, wait: Any) -> None:
    try:
        dist.init_process_group(backend, timeout=wait)
    except (RuntimeError, ValueError) as error:
        raise LostRankError(f"The ranks did not find one another: {str(error).splitlines()[0]}") from error


@contextmanager
def same_on_all_ranks() -> Iterator[None]:
    """What every rank prepares by itself: an error that rank 0 has too is said once, by rank 0."""
    if ranks_here() == 1:
        yield
        return
    from saltflat.ranks.group import Group

    failed: Exception | None = None
    try:
        yield
    except Exception as error:
        failed = error
    group = Group()
    try:
        said = group.texts("" if failed is None else f"{type(failed).__name__}: {failed}")
    finally:
        group.close()
    if failed is not None and (group.leads or said[group.rank] != said[0]):
        raise failed
    wrong = next((rank for rank, text in enumerate(said) if text), None)
    if wrong is not None:
        raise LostRankError(f"Rank {wrong} could not begin: {said[wrong].partition(': ')[2]}")


def from_rank_0(make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What rank 0 finds out, on every rank; as JSON, so that it may travel."""
    if ranks_here() == 1:
        return make()
    from saltflat.ranks.group import Group

    group = Group()
    try:
        if not group.leads:
            told: dict[str, Any] = json.loads(group.text())
            if not told:
                raise LostRankError("Rank 0 could not begin.")
            return told
        try:
            made = make()
        except BaseException:
            group.text("{}")
            raise
        group.text(json.dumps(made))
        return made
    finally:
        group.close()


def lost_rank(error: BaseException, folder: Path) -> NoReturn:
    """End after a rank was lost: say what is kept, and the exact command that goes on with it."""
    from saltflat.ranks.stopping import already_ending

    already_ending()
    words = "The launcher ended this rank, as it does when another one was lost."
    if isinstance(error, LostRankError):
        words = str(error)
    if (folder / "checkpoint" / "state.safetensors").exists():
        words += (
            "\n  What was released so far stays recorded in the ledger. With any number of ranks, also one,"
            f"\n  go on with: saltflat train --resume {shlex.quote(str(folder))}"
        )
    elif (folder / "plan.json").exists():
        words += f"\n  What was released so far stays recorded in {folder / 'ledger.jsonl'}."
    else:
        words += "\n  Nothing was released yet."
    click.echo(f"{painted('saltflat:', sys.stderr, fg='red', bold=True)} {words}", err=True)
    raise click.exceptions.Exit(LOST)


def stopped_ranks(error: KeyboardInterrupt, folder: Path) -> NoReturn:
    """End a rank that was told to: rank 0 says how to go on, the others are quiet."""
    from saltflat.ranks.stopping import Terminated, already_ending

    already_ending()
    if rank_here():
        raise click.exceptions.Exit(LOST)
    if isinstance(error, Terminated):
        lost_rank(error, folder)
    stopped_run(folder)


def leave_to_rank_0() -> None:
    """End here, quietly, unless this is rank 0: there is nothing to compute."""
    if rank_here():
        raise click.exceptions.Exit(0)
