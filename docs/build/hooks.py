"""What MkDocs needs to make a site of pages that are written to be read in the repository.

Files outside of ``docs`` that a page links to become pages: examples with their code, CONTRIBUTING and the like. Links
to them are turned there. The reference has a page for each chapter. Words after a block's language are for the tests.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))
import reference

ROOT = reference.ROOT
LINK = re.compile(r"(\]\()([^)\s#:]+)(#[^)\s]*)?\)")
LANGUAGES = {".py": "python", ".toml": "toml"}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that lie elsewhere, and those of the reference."""
    found = {f"docs/{file.src_uri}" for file in files.documentation_pages()}
    waiting = sorted(found)
    while waiting:
        path = waiting.pop()
        if Path(path).suffix != ".md":
            continue
        for target in _targets(path):
            if target not in found and not target.startswith("docs/") and (ROOT / target).is_file():
                found.add(target)
                waiting.append(target)
                files.append(File.generated(config, _uri(target), content=_content(target)))
    for chapter in reference.chapters():
        name = f"reference/{chapter}.md"
        files.append(File.generated(config, name, content=reference.chapter_page(chapter)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links as they are on the site, and blocks without the words for the tests."""
    here = page.file.src_uri
    path = _lying_at(here)
    markdown = re.sub(r"^```(\w+) .*$", r"```\1", markdown, flags=re.MULTILINE)
    if here == "reference.md":
        markdown = re.sub(
            r"^\| `(saltflat[\w.]*)` ", r"| [`\1`](reference/\1.md) ", markdown, flags=re.MULTILINE
        )

    def turned(match: re.Match[str]) -> str:
        target = _resolved(path, match[2])
        if target.startswith("docs/"):
            return f"{match[1]}{_relative(target.removeprefix('docs/'), here)}{match[3] or ''})"
        if (ROOT / target).is_file():
            return f"{match[1]}{_relative(_uri(target), here)}{match[3] or ''})"
        return match[0]

    if here.startswith("reference/"):
        return markdown
    return LINK.sub(turned, markdown)


def _targets(path: str) -> list[str]:
    text = (ROOT / path).read_text(encoding="utf-8")
    return [_resolved(path, match[2]) for match in LINK.finditer(text)]


def _resolved(path: str, link: str) -> str:
    """What a link in a file of the repository leads to, from the repository's top."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), link))


def _relative(uri: str, here: str) -> str:
    return posixpath.relpath(uri, posixpath.dirname(here) or ".")


def _uri(path: str) -> str:
    return posixpath.splitext(path)[0] + ".md"


def _lying_at(uri: str) -> str:
    """The file of the repository that a page was made from."""
    docs = f"docs/{uri}"
    return docs if (ROOT / docs).exists() else uri


def _content(path: str) -> str:
    text, suffix = (ROOT / path).read_text(encoding="utf-8"), Path(path).suffix
    return text if suffix == ".md" else f"# {path}\n\n```{LANGUAGES.get(suffix, 'text')}\n{text}```\n"
