"""The page of results says what the results say: made again from the same files, it is the same."""

from __future__ import annotations

import json
from pathlib import Path

import benchmarks_papers_helpers as helpers
import pytest
from papers import page, pictures
from papers.outcomes import RESULTS, read
from papers.registry import load

REGISTRY = load()
AGAIN = "make it again: python benchmarks/papers/run.py --page"


def test_the_page_is_up_to_date() -> None:
    there = page.PAGE.read_text(encoding="utf-8")
    assert there == page.page(REGISTRY, there), AGAIN


def test_the_readme_is_up_to_date() -> None:
    there = page.README.read_text(encoding="utf-8")
    assert there == page.with_rows(there, page.headline(REGISTRY)), AGAIN


def test_pictures_are_up_to_date() -> None:
    drawn = pictures.pictures(REGISTRY)
    assert all(pictures.up_to_date(picture) for picture in drawn), AGAIN
    there = {path.name for path in pictures.FOLDER.glob("results-*")}
    assert there == {picture.name for picture in drawn}


def test_every_result_belongs_to_a_work_and_is_whole() -> None:
    for path in RESULTS.glob("*.json"):
        result = read(path)
        work = REGISTRY.works.get(result["work"])
        assert work is not None, f"{path.name} belongs to nothing in the registry"
        assert path.name == f"{work.name}-{result['number']}.json"
        assert result["scale"] == work.scale
        assert result["reduced"] == work.reduced
        assert result["version"]
        assert result["machine"]["cores"]
        assert result["seconds"] >= 0
        if "failed" not in result and "plan" in result:
            assert result["epsilon"].keys() == {"pld", "rdp"}


def test_what_was_not_run_is_shown_as_such(tmp_path: Path) -> None:
    rows = '[{ name = "r", label = "row", paper = ["50.0 ± 1.0"] }, { name = "s", label = "other", paper = ["60.0"] }]'
    registry = helpers.registry_of(tmp_path / "registry", helpers.table(rows=rows))
    results = tmp_path / "results"
    results.mkdir()
    for number, accuracy in enumerate((0.51, 0.53), 1):
        (results / f"t-r-c-{number}.json").write_text(json.dumps({"accuracy": accuracy}))
    (results / "t-r-c-3.json").write_text(json.dumps({"failed": "no memory"}))
    made = page.page(registry, "", results)
    assert "| row | DP-SGD | 50.0 ± 1.0 | 52.00 ± 1.41 | +2.00 | 2, 1 failed |" in made
    assert "| other | DP-SGD | 60.0 | not run | | |" in made
    assert "| A paper | 2 | 1 | 0 | 1 |" in made


def test_what_is_written_by_hand_is_kept(tmp_path: Path) -> None:
    registry = helpers.registry_of(tmp_path / "registry", helpers.table())
    first = page.page(registry, "", tmp_path)
    by_hand = first.replace(page.BEGIN + "\n", page.BEGIN + "\nSeen by a person.\n")
    assert "Seen by a person." in by_hand
    assert page.page(registry, by_hand, tmp_path) == by_hand


def test_a_readme_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="marks"):
        page.with_rows("# saltflat", "rows")


def test_a_picture_of_other_results_is_noticed(tmp_path: Path) -> None:
    picture = pictures.Picture("results-x.svg", "x", {"a": 1}, lambda data: None)
    (tmp_path / "results-x.svg").write_text(f"shows {picture.key}")
    assert pictures.up_to_date(picture, tmp_path)
    other = pictures.Picture("results-x.svg", "x", {"a": 2}, lambda data: None)
    assert not pictures.up_to_date(other, tmp_path)


def test_every_table_of_the_page_has_its_columns() -> None:
    """A label with a bar in it would break a table."""
    columns = 0
    for line in page.page(REGISTRY, "").splitlines():
        columns = columns if line.startswith("|") and columns else line.count("|")
        assert not line.startswith("|") or line.count("|") == columns, line


def test_a_table_of_which_nothing_was_run_is_short(tmp_path: Path) -> None:
    registry = helpers.registry_of(tmp_path / "registry", helpers.table())
    assert "| row | 50.0 ± 1.0 | not run |" in page.page(registry, "", tmp_path / "results")
    assert "Not run: row, each with DP-SGD." in page.page(
        helpers.registry_of(
            tmp_path / "own", helpers.table(own='"ours"', rows='[{ name = "r", label = "row" }]')
        ),
        "",
        tmp_path / "results",
    )
