"""The page in a real browser: it renders in light and dark, fits a phone, prints, and can be heard."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from report_browser import Browser, started
from report_hostile import hostile_run
from report_runs import a_plan, audit, geometry, sgd, trained, write

import saltflat as sf

pytestmark = pytest.mark.filterwarnings("ignore::saltflat.errors.PrivacyWarning")

NAMES = ("single", "several", "hostile")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started() as found:
        yield found


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run with everything beside it, several runs, and one full of markup."""
    folder = tmp_path_factory.mktemp("pages")
    single = trained(folder / "single")
    write(single, "geometry.json", geometry())
    write(single, "audit.json", audit(a_plan()))
    for name, plan in (
        ("a", sgd()),
        ("b", sgd()),
        ("c-with-a-very-long-name-that-does-not-end-soon" * 3, a_plan()),
    ):
        trained(folder / "several" / name, plan)
    (folder / "hostile").mkdir()
    sources = {"single": single, "several": folder / "several", "hostile": hostile_run(folder / "hostile")}
    found = {}
    for name, source in sources.items():
        found[name] = folder / f"{name}.html"
        sf.report(source, found[name])
    return found


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_renders_without_a_word_on_the_console(
    browser: Browser, pages: dict[str, Path], name: str, scheme: str
) -> None:
    browser.open(pages[name], scheme=scheme)
    assert browser.complaints() == []
    assert browser.value("document.title").startswith("Report: ")
    assert browser.value("document.querySelectorAll('script, img, iframe, link').length") == 0
    assert browser.value("document.querySelectorAll('section').length") >= 7
    assert browser.value("performance.getEntriesByType('resource').length") == 0  # nothing was fetched
    picture = _opened(browser.screenshot())
    bright = picture.convert("L").resize((1, 1)).getpixel((0, 0))
    assert bright > 200 if scheme == "light" else bright < 80


def test_the_console_is_really_heard(browser: Browser, tmp_path: Path) -> None:
    """What the test above looks for is there on a page that does complain."""
    page = tmp_path / "loud.html"
    page.write_text("<!doctype html><title>x</title><script>console.error('heard'); missing()</script>")
    browser.open(page)
    assert any("heard" in words for words in browser.complaints())
    assert len(browser.complaints()) >= 2


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_and_lines_stand_out(browser: Browser, pages: dict[str, Path], scheme: str) -> None:
    """Contrast of at least 4.5 for words and 3 for what is drawn, as WCAG 2.1 asks."""
    browser.open(pages["single"], scheme=scheme)
    paper = _luminance(browser.value("getComputedStyle(document.body).backgroundColor"))
    for selector, style, least in [
        ("body", "color", 4.5), (".note", "color", 4.5), ("a", "color", 4.5), ("figure summary", "color", 4.5),
        ("svg text", "fill", 4.5), (".label", "fill", 4.5), (".line.s0", "stroke", 3.0), (".line.s1", "stroke", 3.0),
        (".bar.s0", "fill", 3.0), (".claim .figure", "color", 4.5), (".axis", "stroke", 3.0), (".tick", "stroke", 3.0),
    ]:  # fmt: skip
        shown = browser.value(f"getComputedStyle(document.querySelector({selector!r})).{style}")
        high, low = sorted((_luminance(shown), paper), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= least, f"{selector} in {scheme}"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [320, 360])
def test_nothing_sticks_out_on_a_phone(
    browser: Browser, pages: dict[str, Path], name: str, width: int
) -> None:
    """Also with everything unfolded. Fails when a table is not put into a box that scrolls (tried)."""
    browser.open(pages[name], width=width, height=700)
    browser.value("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert browser.value("document.documentElement.scrollWidth") <= width
    sticking = browser.value(
        "[...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll') && !e.closest('svg') && "
        f"e.getBoundingClientRect().right > {width} + 0.5).map(e => e.outerHTML.slice(0, 200))"
    )
    assert sticking == []


@pytest.mark.parametrize("name", NAMES)
def test_every_picture_has_a_name_that_is_read_out(
    browser: Browser, pages: dict[str, Path], name: str
) -> None:
    browser.open(pages[name])
    names = browser.images()
    drawn = browser.value("document.querySelectorAll('svg.chart').length")
    assert len(names) == drawn >= 3
    assert all(len(words) > 10 for words in names)
    assert len(set(names)) == len(names)


def test_words_in_pictures_do_not_lie_on_one_another(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["single"])
    overlapping = browser.value(
        "[...document.querySelectorAll('svg.chart')].flatMap(s => { const t = [...s.querySelectorAll('text')]"
        ".map(e => [e.textContent, e.getBoundingClientRect()]); return t.flatMap(([a, p], i) => t.slice(i + 1)"
        ".filter(([b, q]) => p.left + 1 < q.right && q.left + 1 < p.right && p.top + 3 < q.bottom && "
        "q.top + 3 < p.bottom).map(([b]) => a + ' / ' + b)); })"
    )
    assert overlapping == []


@pytest.mark.parametrize("name", NAMES)
def test_it_prints(browser: Browser, pages: dict[str, Path], name: str) -> None:
    browser.open(pages[name], scheme="dark")
    content = browser.pdf()
    assert content.startswith(b"%PDF-")
    assert 2 <= content.count(b"/Type /Page\n") + content.count(b"/Type /Page ") <= 14
    browser.open(pages[name], scheme="dark", media="print")  # on paper it is black on white
    assert browser.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.value("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert browser.value("[...document.querySelectorAll('#verdict .claim')].every(e => e.offsetHeight > 0)")


def test_the_browser_goes_when_it_is_told(tmp_path: Path) -> None:
    with started() as found:
        process = found.process
        assert process.poll() is None
    assert process.poll() is not None


def _opened(png: bytes) -> Any:
    Image = pytest.importorskip("PIL.Image")
    return Image.open(io.BytesIO(png))


def _luminance(colour: str) -> float:
    """Of a colour as the browser says it, by WCAG 2.1."""
    red, green, blue = [float(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    parts = [
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in (red, green, blue)
    ]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]
