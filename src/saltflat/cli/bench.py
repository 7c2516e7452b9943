"""``saltflat bench``: how fast and how large a private step is, beside the alternatives."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import click

from saltflat.bench.settings import FULL, QUICK, SECTIONS, Settings, chosen, left_out
from saltflat.cli.known import complete_models, complete_sections
from saltflat.cli.run_options import json_at_the_end, quiet_option
from saltflat.cli.words import same_command, stopped
from saltflat.errors import MissingDependencyError


@click.command(
    epilog="""\b
Examples:
  saltflat bench --quick
  saltflat bench --sections engines --models cnn-selu,vit-tiny --rounds 9
  saltflat bench --out runs/bench --json > bench.json

A bench that was cut off goes on where it stopped when the same command is given again.
"""
)
@click.option("--models", shell_complete=complete_models,
              help=f"Models, separated by commas.  [default: {', '.join(FULL.models)}]")  # fmt: skip
@click.option("--examples", type=int, help=f"Examples of a step.  [default: {FULL.examples}]")
@click.option("--rounds", type=int, help=f"Rounds of which the median is taken.  [default: {FULL.rounds}]")
@click.option("--sections", shell_complete=complete_sections,
              help=f"What to measure, separated by commas.  [default: {', '.join(SECTIONS)}]")  # fmt: skip
@click.option(
    "--quick", is_flag=True, help=f"Under three minutes: {', '.join(QUICK.models)}, and less of everything."
)
@click.option("--out", type=click.Path(file_okay=False),
              help="The folder of the results.  [default: runs/bench; with --quick runs/bench-quick]")  # fmt: skip
@click.option("--fresh", is_flag=True, help="Measure again what the folder already holds.")
@json_at_the_end
@quiet_option
def command(out: str | None, fresh: bool, as_json: bool, quiet: bool, **sizes: Any) -> int:
    """Time and memory of private steps beside ordinary ones and beside other libraries.

    Each model has a fresh process, in which all engines take turns; what is shown are ratios of their times,
    round by round. Memory is measured in a fresh process each time. Close other programs first: a busy machine
    widens the brackets.

    Ends with exit code 1 when a sum of gradients is wrong. A goal that is not met is only reported.
    """
    settings = chosen(**sizes)
    from saltflat.bench import goals, machine
    from saltflat.bench.report import report
    from saltflat.bench.results import Results
    from saltflat.bench.workload import check_models

    check_models(settings.models)
    facts = machine.facts()
    folder = Path(out or ("runs/bench-quick" if sizes["quick"] else "runs/bench"))
    results = Results.open(folder, {"sizes": settings.sizes(), "machine": facts}, fresh=fresh)
    omitted = left_out(settings)
    started, busy = time.perf_counter(), machine.load()
    try:
        sections_found = measured(settings, results, quiet=quiet)
    except KeyboardInterrupt:
        stopped(f"What was measured so far is kept in {results.path}.", same_command())
    pictures = _pictures(sections_found, folder)
    answer: dict[str, Any] = {
        "sections": sections_found,
        "summary": goals.summary(sections_found),
        "goals": [goal.as_dict() for goal in goals.goals(sections_found)],
        "machine": facts | {"load_at_the_start": busy},
        "sizes": results.identity["sizes"],
        "left_out": omitted,
        "pictures": [str(path) for path in pictures],
        "out": str(folder),
        "seconds": round(time.perf_counter() - started, 1),
    }
    results.save(**{key: answer[key] for key in ("summary", "goals", "left_out")})
    if as_json:
        click.echo(json.dumps(answer, allow_nan=False))
    else:
        click.echo(report(sections_found, facts, omitted))
        drawn = f"; pictures {', '.join(map(str, pictures))}" if pictures else ""
        click.echo(f"\nresults in {results.path}{drawn} ({answer['seconds']:.0f} s)")
    wrong = answer["summary"]["wrong_gradients"]
    if wrong:
        click.echo(f"saltflat: the sums of gradients are wrong on {', '.join(wrong)}", err=True)
    return 1 if wrong else 0


def measured(settings: Settings, results: Any, quiet: bool = False) -> dict[str, dict[str, Any]]:
    """The results of every task that the settings ask for, kept one by one.

    Progress goes to standard error: a bar on a terminal, elsewhere a line for each task.
    """
    from saltflat.bench.tasks import tasks
    from saltflat.training.progress import NotedBar

    asked = tasks(settings)
    found: dict[str, dict[str, Any]] = {}
    on_terminal = sys.stderr.isatty()
    with NotedBar("bench", len(asked), shown=on_terminal and not quiet) as bar:
        for number, task in enumerate(asked, start=1):
            kept = results.kept(task.section, task.key) is not None
            words = f"{task}{', measured before' if kept else ''}"
            bar.update(completed=number - 1, note=words)
            if not (quiet or on_terminal):
                click.echo(f"{number}/{len(asked)} {words}", err=True)
            found.setdefault(task.section, {})[task.key] = results.once(task.section, task.key, task.measure)
    return found


def _pictures(sections: dict[str, Any], folder: Path) -> list[Path]:
    from saltflat.bench.pictures import draw

    try:
        return draw(sections, folder)
    except MissingDependencyError as error:
        click.echo(f"no pictures: {error}", err=True)
        return []
