"""Pictures of results that have not been made yet can be drawn: every function, on made-up files of the same form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import benchmarks_papers_helpers  # noqa: F401 - puts the benchmarks on the path
from papers import pictures
from papers.registry import load

CYCLES = (1, 10, 100, 1000, 10_000)


def made_up(results: Path) -> None:
    """Result files with the fields that the runner writes, for every picture."""
    for number in (1, 2):
        for epsilon in (1, 8):
            steps = range(4096, 409_601, 4096)
            history: list[dict[str, float]] = [{"step": s, "loss": 30 / epsilon / s**0.2} for s in steps]
            for row in history[22:]:
                row["average_loss"] = 90 / epsilon / row["step"] ** 0.5
            by_cycle = {str(c): 0.5 * number + c / 1e4 for c in CYCLES}
            keep(results, f"dp-swa-table1-eps{epsilon}", number, history=history, by_cycle=by_cycle)
            accuracies = {str(c): 0.7 + 0.01 * epsilon - c / 1e6 for c in CYCLES}
            keep(
                results,
                f"dp-swa-table2-eps{epsilon}",
                number,
                accuracy=0.7,
                average_accuracy=0.74,
                by_cycle=accuracies,
            )
        for method in ("dp-sgd", "sai"):
            course = [{"epoch": float(e), "accuracy": 0.3 + e / 100} for e in range(1, 5)]
            work = f"sai-table1-cifar10-cnn-selu-eps1-{method}"
            keep(results, work, number, accuracy=0.34, history=course)
        for name in ("inf", "eps8", "eps1"):
            rows = [{"epoch": e, "sharpness": 10 + (e - 5) ** 2, "loss": 2 / (e + 1)} for e in range(1, 21)]
            keep(results, f"sai-figure2-reduced-{name}", number, sharpness=rows)
        for epochs in (5, 10, 20, 40):
            for method in ("dp-sgd", "dp-sat", "sai"):
                value = 0.9 + epochs / 1000 + number / 500 - len(method) / 300
                keep(results, f"fair-choose-mnist-mlp-epochs{epochs}-{method}", number, accuracy=value)
    keep(results, "dp-swa-table1-eps1", 3, failed="no memory")


def keep(results: Path, work: str, number: int, **found: Any) -> None:
    known = {"work": work, "number": number, "reduced": "", "settings": {}, **found}
    (results / f"{work}-{number}.json").write_text(json.dumps(known), encoding="utf-8")


def test_every_picture_can_be_drawn(tmp_path: Path) -> None:
    """Also with a failed run among the others."""
    results, folder = tmp_path / "results", tmp_path / "pictures"
    results.mkdir()
    folder.mkdir()
    made_up(results)
    drawn = pictures.pictures(load(), results)
    assert [p.name for p in drawn] == [
        f"results-{name}.svg" for name in ("paper-and-ours", "averages", "courses", "sharpness", "epochs")
    ]
    (folder / "results-old.svg").write_text("no longer drawn", encoding="utf-8")
    pictures.write_all(drawn, folder)
    assert {path.name for path in folder.iterdir()} == {p.name for p in drawn}
    assert all(pictures.up_to_date(p, folder) for p in drawn)
    told = {p.name: p.data for p in drawn}["results-averages.svg"]
    assert told["linear 8"]["by_cycle"][0] == [
        1,
        0.7501,
    ]  # the mean over two runs; the failed one is left out
    assert told["linear 1"]["average"][-1][1] < told["linear 1"]["iterate"][-1][1]


def test_the_picture_of_averages_is_of_the_clip_norm_at_which_dp_sgd_arrives(tmp_path: Path) -> None:
    """Fails when the runs at C = 1, where averages only show how far the iterates had to go, come first (tried)."""
    made_up(tmp_path)
    by_cycle = dict.fromkeys(map(str, CYCLES), 8.0)
    history = [{"step": step, "loss": 22.0, "average_loss": 8.0} for step in (1, 2)]
    settings = {"clip_norm": 17.0}
    for epsilon in (1, 8):
        work = f"dp-swa-table1-clip17-eps{epsilon}"
        keep(tmp_path, work, 1, history=history, by_cycle=by_cycle, settings=settings)
    told = pictures.averages(tmp_path)
    assert told["linear 1"]["clip_norm"] == 17.0
    assert {distance for _, distance in told["linear 1"]["by_cycle"]} == {8.0}
