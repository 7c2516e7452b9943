"""The top of the command line: finds commands, and turns errors into sentences and exit codes."""

from __future__ import annotations

import importlib
import os
import re
import sys
import traceback
import warnings
from typing import Any

import click
from click.shell_completion import CompletionItem

from saltflat.cli.words import STOPPED, painted
from saltflat.errors import SaltflatError, nearest

# name -> what --help says of it; the module of that name is imported when it is asked for, so that --help is quick
COMMANDS = {
    "quickstart": "the whole story on embedded data, in under two minutes on two cores",
    "train": "train one model with one method",
    "recipe": "all that public data can give: synthesis, warm-up, private training, report",
    "compare": "train several methods side by side, with several seeds",
    "tune": "choose settings within the budget, or on public data",
    "federate": "train one model over many clients, each protected as a whole",
    "predict": "what the model of a run says of other rows",
    "evaluate": "the accuracy of a run on private rows, released with noise",
    "calibrate": "from a budget to the noise it asks for",
    "account": "from noise to the budget it costs",
    "verify": "check a run folder, and compute its ε again",
    "sign": "sign the certificate of a run",
    "keygen": "make a pair of keys to sign with",
    "budget": "what a data set has spent over all its runs, and what is left",
    "audit": "attack a plan's mechanism, and bound ε from below",
    "geometry": "how flat the minimum of a run is: sharpness, landscape, wideness",
    "report": "one page about one or several runs, and a privacy card",
    "bench": "time and memory of a private step beside the alternatives",
    "synthesize": "a diffusion model on public images, its samples, and their quality",
    "data": "list, fetch, locate and describe data sets",
    "models": "list and describe models",
    "completion": "let the shell complete commands, options and names",
}

ONE_PROCESS = ("quickstart", "recipe", "compare", "tune", "federate", "bench")
"""What several ranks would each do all of."""

EXIT_BAD_INPUT = 2
_NO_ARGUMENTS: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())  # since click 8.2


class LazyGroup(click.Group):
    """A group whose commands live in modules of their own."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        return importlib.import_module(f"saltflat.cli.{cmd_name}").command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        unknown = args and not args[0].startswith("-") and args[0] not in COMMANDS
        if unknown and not ctx.resilient_parsing:  # a shell that completes asks about half a line
            raise click.UsageError(
                f"There is no command {args[0]!r}. {nearest(args[0], list(COMMANDS))}", ctx=ctx
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names and words from the table above: click's own way would import every command."""
        found = [
            CompletionItem(name, help=words)
            for name, words in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="""\b
Examples:
  saltflat quickstart
  saltflat train --data visits.csv --label outcome --epsilon 1 --out runs/visits
  saltflat verify runs/visits
  saltflat train --help
""",
)
@click.version_option(package_name="saltflat", prog_name="saltflat")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_context
def app(ctx: click.Context, debug: bool) -> None:
    """Train PyTorch models on private data: state a budget, get a model trained within it.

    Exit codes: 0 done, 1 a check failed, 2 bad input, 130 stopped by Ctrl-C.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ and ctx.invoked_subcommand in ONE_PROCESS:
        from saltflat.cli.ranks import check_alone

        check_alone(ctx.invoked_subcommand)


def main() -> None:
    """The entry point of the command ``saltflat``."""
    debug = "--debug" in sys.argv
    if debug:
        sys.argv.remove("--debug")  # so that it may stand anywhere
    warnings.showwarning = _show_warning
    # no file has such a name, and Python refuses it with a traceback
    if any("\0" in word for word in sys.argv):
        _stop(EXIT_BAD_INPUT, "an argument holds a null byte.")
    try:
        code = app.main(prog_name="saltflat", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except (click.Abort, KeyboardInterrupt, BrokenPipeError):
        if debug:
            raise
        _stop(STOPPED, "stopped.")
    except click.ClickException as error:
        if isinstance(error, _NO_ARGUMENTS):
            error.show()
            sys.exit(EXIT_BAD_INPUT)
        if debug:
            traceback.print_exc()
        _stop(EXIT_BAD_INPUT, _sentence(error))
    except (SaltflatError, OSError) as error:
        if debug:
            traceback.print_exc()
        _stop(EXIT_BAD_INPUT, _of_system(error) if isinstance(error, OSError) else str(error))


def _sentence(error: click.ClickException) -> str:
    """What click found wrong, in the form of our own errors: the fault, then where to look."""
    message = re.sub(r"\s*\n\s*", " ", error.format_message().rstrip())
    message += "" if message.endswith((".", "?")) else "."
    context = getattr(error, "ctx", None)
    return message if context is None else f"{message}\n  See: {context.command_path} --help"


def _of_system(error: OSError) -> str:
    """What the operating system refused: the file first, then the reason, without its number."""
    if error.strerror is None or error.filename is None:
        return str(error)
    return f"{error.filename}: {error.strerror}."


def _stop(code: int, message: str) -> None:
    try:
        click.echo(f"{painted('saltflat:', sys.stderr, fg='red', bold=True)} {message}", err=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    label = painted("saltflat: warning:", sys.stderr, fg="yellow")
    click.echo(f"{label} {message}", err=True)
