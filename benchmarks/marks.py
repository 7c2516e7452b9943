"""What a benchmark writes into a page stands between two marks, and nothing else on the page is touched."""

from __future__ import annotations

from pathlib import Path


def between(page: str, begin: str, end: str, made: str) -> str:
    """The page with ``made`` between its marks. One without them is refused: the text would land anywhere.

    >>> between("a <b> old </b> c", "<b>", "</b>", "new")
    'a <b>\\nnew\\n</b> c'
    """
    if begin not in page or end not in page:
        raise ValueError(f"the page has no marks {begin} and {end}")
    head, _, rest = page.partition(begin)
    return f"{head}{begin}\n{made}\n{end}{rest.partition(end)[2]}"


def write_between(page: Path, begin: str, end: str, made: str) -> None:
    """Put ``made`` between the marks of the page."""
    page.write_text(between(page.read_text(encoding="utf-8"), begin, end, made), encoding="utf-8")
