"""The top of the command line: finds commands, and turns errors into sentences and exit codes."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from typing import Any

import click

from saltflat.errors import SaltflatError

# name -> the module that defines `command`; imported when it is asked for, so that --help is quick
COMMANDS = {
    "quickstart": "the whole story on embedded data, in under two minutes on two cores",
    "train": "train one model with one method",
    "compare": "train several methods side by side, with several seeds",
    "tune": "choose settings within the budget, or on public data",
    "federate": "train one model over many clients, each protected as a whole",
    "evaluate": "the accuracy of a run on private rows, released with noise",
    "calibrate": "from a budget to the noise it asks for",
    "account": "from noise to the budget it costs",
    "verify": "check a run folder, and compute its ε again",
    "sign": "sign the certificate of a run",
    "keygen": "make a pair of keys to sign with",
    "budget": "what a data set has spent over all its runs, and what is left",
    "audit": "attack a plan's mechanism, and bound ε from below",
    "bench": "time and memory of a private step beside the alternatives",
    "data": "list, fetch, locate and describe data sets",
    "models": "list and describe models",
}

EXIT_BAD_INPUT = 2


class LazyGroup(click.Group):
    """A group whose commands live in modules of their own."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"saltflat.cli.{cmd_name}").command
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            from saltflat.errors import nearest

            raise click.UsageError(f"There is no command {args[0]!r}. {nearest(args[0], list(COMMANDS))}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(package_name="saltflat", prog_name="saltflat")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def app(debug: bool) -> None:
    """Train PyTorch models on private data: state a budget, get the most accurate model that it buys.

    Exit codes: 0 done, 1 a check failed, 2 bad input.
    """


def main() -> None:
    """The entry point of the command ``saltflat``."""
    debug = "--debug" in sys.argv
    if debug:
        sys.argv.remove("--debug")  # so that it may stand anywhere
    warnings.showwarning = _show_warning
    try:
        code = app.main(prog_name="saltflat", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.Abort:
        _stop(130, "stopped. What was released so far stays recorded in the ledger.")
    except click.ClickException as error:
        if debug:
            raise
        error.show()
        sys.exit(EXIT_BAD_INPUT)
    except (KeyboardInterrupt, BrokenPipeError):
        _stop(130, "stopped. What was released so far stays recorded in the ledger.")
    except (SaltflatError, OSError) as error:
        if debug:
            raise
        _stop(EXIT_BAD_INPUT, str(error))


def _stop(code: int, message: str) -> None:
    try:
        click.echo(f"saltflat: {message}", err=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    click.echo(f"saltflat: warning: {message}", err=True)
