"""``saltflat geometry``: how flat the minimum of a run is, in numbers and pictures."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from saltflat.cli.run_options import data_dir_option, device_option, json_option, label_option, listed
from saltflat.errors import InputError, MissingDependencyError
from saltflat.training.progress import NotedBar

if TYPE_CHECKING:
    from saltflat.data import DataSet
    from saltflat.geometry import Loss, Settings
    from saltflat.training.run import Run

PARTS = "spectrum, density, landscape, wideness, gradients"
WEIGHTS = ("last", "average")


@click.command(
    epilog="""\b
Examples:
  saltflat geometry runs/digits
  saltflat geometry runs/sgd runs/sat --parts spectrum,wideness --rows 2000
  saltflat geometry runs/swa runs/swa --weights last,average
  saltflat geometry runs/digits --parts spectrum --split train --private
  saltflat geometry --toy --out pictures
"""
)
@click.argument("runs", nargs=-1, type=click.Path(exists=True, file_okay=False))
@click.option("--parts", default="spectrum,landscape,wideness", show_default=True,
              help=f"What to measure, separated by commas: {PARTS}; or all.")  # fmt: skip
@click.option("--rows", type=int, default=1000, show_default=True, help="Rows to measure on, at most.")
@click.option("--split", type=click.Choice(["test", "public", "train"]), default="test", show_default=True,
              help="Which rows; public: those of --data, which you declare public.")  # fmt: skip
@click.option("--private", is_flag=True,
              help="Use private training rows too: what is found is NOT covered by ε, and says so.")  # fmt: skip
@click.option("--weights", default="last", show_default=True,
              help="Which ones: last or average; or one for each run, separated by commas.")  # fmt: skip
@click.option("--data", help="A data set's name, or a path.  [default: that of the first run]")
@data_dir_option
@label_option
@click.option("--top", type=int, default=5, show_default=True, help="How many eigenvalues.")
@click.option("--tolerance", type=float, default=1e-3, show_default=True,
              help="Of the eigenvalues, relative to the largest.")  # fmt: skip
@click.option("--probes", type=int, default=10, show_default=True, help="Random probes for the trace.")
@click.option("--points", type=int, default=21, show_default=True, help="Points of a landscape's side.")
@click.option("--span", type=float, default=1.0, show_default=True, help="Half the side of a landscape.")
@click.option("--precision", type=click.Choice(["float32", "bfloat16"]),
              help="Of a landscape.  [default: bfloat16 where it is quick, and right to a hundredth]")  # fmt: skip
@click.option("--rays", type=int, default=10, show_default=True, help="Random rays for the wideness.")
@click.option("--reach", type=float, help="How far along the rays.  [default: half the first run's weights]")
@click.option("--seed", type=int, default=0, show_default=True, help="Decides rows, directions and probes.")
@click.option(
    "--out", type=click.Path(file_okay=False), help="Where to write.  [default: into the run folders]"
)
@click.option("--pictures/--no-pictures", default=True, show_default=True, help="Draw what was found.")
@click.option("--toy", is_flag=True, help="Only draw two minima, flat and sharp, under the noise of privacy.")
@device_option
@json_option
@click.option("--quiet", is_flag=True, help="No progress.")
def command(runs: tuple[str, ...], toy: bool, **options: Any) -> None:
    """How flat the minima of RUNS are: sharpness, landscape, wideness, and the lines between them.

    Writes geometry.json and pictures into each run folder, or under --out. With several runs also
    interpolation.json: the line from the first run to the second. The certificate does not cover these files,
    and verify passes them by.

    Everything is measured on test rows unless --split says otherwise. These are exact numbers about the rows:
    no ε covers them.
    """
    if toy:
        _draw_toy(Path(options["out"] or "."), options["as_json"])
        return
    if not runs:
        raise InputError("runs", "", "at least one run folder", problem="is missing", cure="Or use --toy.")
    from saltflat.geometry.measure import PARTS as ALL
    from saltflat.geometry.measure import Settings

    asked = listed(options["parts"])
    words = ("top", "tolerance", "probes", "points", "span", "precision", "rays", "reach", "seed")
    settings = Settings(parts=ALL if asked == ("all",) else asked, **{word: options[word] for word in words})
    shown = not (options["quiet"] or options["as_json"]) and sys.stderr.isatty()
    with NotedBar("", None, shown) as bar:
        answer = _measured(_subjects(runs, options), settings, options, bar)
    if options["as_json"]:
        click.echo(json.dumps(answer, allow_nan=False))
        return
    for found in answer["runs"]:
        click.echo(_words_about(found))
    for line in answer["interpolations"]:
        gain = line["wideness_gain"]
        click.echo(
            f"{line['runs'][1]} is {abs(gain):.2f} % {'wider' if gain >= 0 else 'narrower'} than {line['runs'][0]}"
        )
    click.echo(f"wrote {', '.join(answer['files'] + answer['pictures'])}")


@dataclass(frozen=True)
class _Subject:
    """A run to look at, with which of its weights, and where its files go."""

    run: Run
    name: str
    weights: str
    loss: Loss
    train: Loss | None
    folder: Path
    stem: str


def _subjects(runs: tuple[str, ...], options: dict[str, Any]) -> list[_Subject]:
    """Load everything before anything is computed."""
    from saltflat.geometry import Loss, rows_of
    from saltflat.training.run import Run

    which = _weights(options["weights"], len(runs))
    data = _data_of(runs[0], options)
    if options["split"] == "train" and not options["private"]:
        raise InputError(
            "split", "train", "test or public rows", problem="asks for exact numbers about private training rows",
            cure="Add --private if that is what you want: the numbers will not be covered by ε.",
        )  # fmt: skip
    chosen = rows_of(data, options["split"], private=options["private"])
    beside = None
    if options["private"] and options["split"] != "train":
        beside = rows_of(data, "train", private=True)
    found: list[_Subject] = []
    for path, word in zip(runs, which):
        run = Run.load(path)
        if word == "average" and run.average is None:
            raise InputError(
                "weights", word, "last, because the run averaged nothing", problem=f"is asked for of {path}"
            )
        given = {name: options[name] for name in ("rows", "seed", "device")}
        given["weights"] = run.average if word == "average" else None
        loss = Loss(run.model, chosen, **given)
        train = Loss(run.model, beside, **given) if beside is not None and not found else None
        again = any(Path(path).resolve() == other.run.folder.resolve() for other in found if other.run.folder)
        folder = Path(path) if options["out"] is None else Path(options["out"])
        if options["out"] is not None and len(set(runs)) > 1:
            folder = folder / _folder_name(path, runs)
        stem = "geometry" if not again else f"geometry-{word}" if word != "last" else "geometry-again"
        found.append(_Subject(run, path.rstrip("/"), word, loss, train, folder, stem))
    return found


def _measured(
    subjects: list[_Subject], settings: Settings, options: dict[str, Any], bar: NotedBar
) -> dict[str, Any]:
    """Measure and write, run by run, so that what is done is kept when the rest is cut off."""
    from saltflat.geometry import pictures
    from saltflat.geometry.measure import compare, measure, same_reach

    settings = same_reach(settings, subjects[0].loss)
    answer: dict[str, Any] = {"runs": [], "interpolations": [], "files": [], "pictures": []}
    drawing = _Drawing(options["pictures"], answer)
    for subject in subjects:
        found = measure(
            subject.loss, settings,
            run=subject.name, weights=subject.weights, clip_norm=subject.run.plan.phases[-1].clip_norm,
            history=subject.run.history, progress=telling_of(subject.name, bar),
        )  # fmt: skip
        answer["runs"].append(found)
        subject.folder.mkdir(parents=True, exist_ok=True)
        answer["files"].append(_written(found, subject.folder / f"{subject.stem}.json"))
        drawing.keep(pictures.draw, found, subject.folder, subject.stem)
    first, place = subjects[0], Path(options["out"] or subjects[0].folder)
    for number, other in enumerate(subjects[1:], start=1):
        told = telling_of(f"{first.name} and {other.name}", bar)
        wides = answer["runs"][0]["wideness"], answer["runs"][number]["wideness"]
        # measured, and no figure is missing because it was not finite
        whole = all(wide and None not in [*wide["loss"], *wide["spread"]] for wide in wides)
        line = compare(
            first.loss, other.loss, settings,
            runs=(_titled(first), _titled(other)), train=first.train,
            wides=wides if whole else None, progress=told,
        )  # fmt: skip
        name = "interpolation" if number == 1 else f"interpolation-{number}"
        answer["interpolations"].append(line)
        answer["files"].append(_written(line, place / f"{name}.json"))
        drawing.keep(pictures.draw_interpolation, line, place / f"{name}.png")
    if len(subjects) > 1 and all(found["wideness"] for found in answer["runs"]):
        gain = answer["interpolations"][0]["wideness_gain"] if len(subjects) == 2 else None
        drawing.keep(pictures.draw_wideness, answer["runs"], place / "wideness.png", gain)
    return answer


class _Drawing:
    """Draws if pictures are wanted and matplotlib is there; says once if it is not."""

    def __init__(self, wanted: bool, answer: dict[str, Any]) -> None:
        self.wanted, self.answer = wanted, answer

    def keep(self, draw: Callable[..., Path | list[Path]], *about: Any) -> None:
        """Draw, and list what was drawn."""
        if not self.wanted:
            return
        try:
            drawn = draw(*about)
            self.answer["pictures"] += [str(p) for p in (drawn if isinstance(drawn, list) else [drawn])]
        except MissingDependencyError as error:
            click.echo(f"no pictures: {error}", err=True)
            self.wanted = False


def telling_of(subject: str, bar: NotedBar) -> Callable[[str, int, int], None]:
    """Shows what is being measured of a run, and how much of it is done."""
    return lambda what, done, total: bar.update(description=f"{subject}: {what}", completed=done, total=total)


def _weights(text: str, runs: int) -> list[str]:
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if word not in WEIGHTS:
            raise InputError("weights", word, f"{' or '.join(WEIGHTS)}, or one of them for each run")
    if len(words) not in (1, runs):
        raise InputError("weights", text, f"one word, or {runs} of them separated by commas")
    return words * runs if len(words) == 1 else words


def _data_of(run: str, options: dict[str, Any]) -> DataSet:
    """The data that the options name, or that the run was started with."""
    from saltflat.cli.run_data import data_of_run
    from saltflat.record.folder import RunFolder

    if options["split"] == "public" and options["data"] is None:
        raise InputError(
            "split", "public", "--data with the rows that you declare public", problem="needs rows of its own"
        )
    data = data_of_run(RunFolder.open(run, "runs"), options, ("data", "data_dir", "label"))
    if options["split"] == "public":
        return replace(data, public=replace(data.train, provenance="public"))
    return data


def _written(found: dict[str, Any], path: Path) -> str:
    from saltflat.record.atomic import write_whole
    from saltflat.record.canonical import spelled

    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, spelled(found, indent=None))
    return str(path)


def _folder_name(path: str, runs: tuple[str, ...]) -> str:
    """The last part of a run's path; with the part before it where two would be the same."""
    last = Path(path).name
    twins = {str(Path(run)) for run in runs if Path(run).name == last}
    return last if len(twins) == 1 else "-".join(Path(path).parts[-2:]).strip("-/.")


def _titled(subject: _Subject) -> str:
    return subject.name if subject.weights == "last" else f"{subject.name} (average)"


def _words_about(found: dict[str, Any]) -> str:
    data = found["data"]
    accuracy = "" if found["accuracy"] is None else f", accuracy {found['accuracy']:.2%}"
    which = "" if found["weights"] == "last" else ", averaged weights"
    lines = [
        f"{found['run']}{which}: loss {_figure(found['loss'])}{accuracy}",
        f"  on {data['rows']:,} rows of {data['name']} ({data['covered']})",
    ]
    if found["eigenvalues"] is not None:
        ratio = "" if found["lambda_ratio"] is None else f", λ_max/λ_5 {found['lambda_ratio']:.4g}"
        trace = found["trace"]
        figures = f"trace {_figure(trace['value'])} ± {_figure(trace['error'])}"
        lines.append(f"  λ_max {_figure(found['lambda_max'])}{ratio}, {figures}")
        if not found["converged"]:
            lines.append(f"  the eigenvalues are less exact than the tolerance {found['tolerance']:g}")
    if found["wideness"] is not None:
        wide = found["wideness"]
        word = "accuracy" if wide["accuracy"] else "loss"
        lines.append(
            f"  {word} {_figure(wide[word][0])} here, {_figure(wide[word][-1])} at distance {wide['distance'][-1]:.3g}"
        )
    if found["gradient_norms"] is not None:
        norms = found["gradient_norms"]
        lines.append(
            f"  {norms['share_clipped']:.1%} of the gradients are longer than {norms['clip_norm']:g}"
        )
    return "\n".join(lines)


def _figure(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"


def _draw_toy(folder: Path, as_json: bool) -> None:
    from saltflat.geometry.toy import draw_toy

    folder.mkdir(parents=True, exist_ok=True)
    paths = [str(path) for path in draw_toy(folder)]
    click.echo(json.dumps({"pictures": paths}) if as_json else f"wrote {', '.join(paths)}")
