"""Downloads, from a folder and from a server on this machine: no test leaves it."""

from __future__ import annotations

import functools
import gzip
import hashlib
import http.server
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from data_writers import write_mnist

from saltflat import data
from saltflat.data.catalogue import CATALOGUE
from saltflat.errors import InputError


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves a folder without a word; a path with "short" in it announces more than it sends."""

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        if "short" not in self.path:
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b"0123456789")


@pytest.fixture
def upstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four tiny files, and a catalogue that knows their checksums."""
    folder = tmp_path / "upstream"
    files = {file.name: file for file in write_mnist(folder)}
    mnist = CATALOGUE["mnist"]
    downloads = tuple(
        replace(d, sha256=hashlib.sha256(gzip.decompress(files[d.file].read_bytes())).hexdigest())
        for d in mnist.downloads
    )
    monkeypatch.setitem(CATALOGUE, "mnist", replace(mnist, downloads=downloads))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return folder


@pytest.fixture
def server(upstream: Path) -> Iterator[str]:
    handler = functools.partial(Quiet, directory=str(upstream))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def test_files_are_fetched_over_http(server: str, own_places: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    files = data.fetch("mnist", progress=lambda *step: seen.append(step), mirror=server)
    assert [file.parent for file in files] == [own_places / "mnist"] * 4
    assert data.locate("mnist") == files
    assert len(data.load("mnist").train) == 20
    assert {name for name, _, _ in seen} == {file.name for file in files}
    last = {name: (done, total) for name, done, total in seen}
    assert all(
        done == total == (own_places / "mnist" / name).stat().st_size for name, (done, total) in last.items()
    )


def test_files_are_fetched_from_a_folder(upstream: Path, tmp_path: Path) -> None:
    files = data.fetch("mnist", tmp_path / "data", mirror=upstream.as_uri() + "/")
    assert files[0] == tmp_path / "data" / "mnist" / "train-images-idx3-ubyte.gz"
    assert sorted(file.name for file in files[0].parent.iterdir()) == sorted(file.name for file in files)


def test_the_second_address_is_tried(upstream: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mnist = CATALOGUE["mnist"]
    downloads = tuple(
        replace(d, urls=((upstream / "gone").as_uri(), (upstream / d.file).as_uri())) for d in mnist.downloads
    )
    monkeypatch.setitem(CATALOGUE, "mnist", replace(mnist, downloads=downloads))
    assert len(data.load("mnist", data_dir=tmp_path / "data", download=True).train) == 20


def test_load_downloads_only_when_told(
    upstream: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when `load` fetches whatever is missing."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a download without leave")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    with pytest.raises(InputError, match="was not found"):
        data.load("mnist", data_dir=tmp_path)


def test_files_that_are_right_are_not_fetched_again(upstream: Path, tmp_path: Path) -> None:
    files = data.fetch("mnist", tmp_path, mirror=upstream.as_uri())
    kept, lost = files[0].stat().st_mtime_ns, files[1]
    lost.write_bytes(b"damaged")
    for file in upstream.iterdir():
        if file.name != lost.name:
            file.unlink()  # nothing else may be asked for
    assert data.fetch("mnist", tmp_path, mirror=upstream.as_uri()) == files
    assert files[0].stat().st_mtime_ns == kept
    assert len(data.load("mnist", data_dir=tmp_path).train) == 20


@pytest.mark.parametrize("damage", [b"", b"damaged", gzip.compress(b"other data", mtime=0), None])
def test_a_wrong_file_never_gets_its_name(upstream: Path, tmp_path: Path, damage: bytes | None) -> None:
    """Fails when the checksum is not compared, or compared after the file has got its name (tried)."""
    file = upstream / "train-images-idx3-ubyte.gz"
    file.write_bytes(file.read_bytes()[:-9] if damage is None else damage)
    with pytest.raises(InputError, match="could not be downloaded") as caught:
        data.fetch("mnist", tmp_path, mirror=upstream.as_uri())
    assert file.name in str(caught.value)
    assert list((tmp_path / "mnist").iterdir()) == []


@pytest.mark.parametrize("path", ["/short", "/nothing-here"])
def test_failures_of_the_server_are_told(server: str, tmp_path: Path, path: str) -> None:
    with pytest.raises(InputError, match=r"10 of 1000 bytes|404"):
        data.fetch("mnist", tmp_path, mirror=server + path)
    assert list((tmp_path / "mnist").iterdir()) == []


@pytest.mark.parametrize("mirror", ["http://127.0.0.1:1/", "nonsense", "ftp://", "http://[bad/"])
def test_an_address_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mirror: str
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(InputError, match="could not be downloaded"):
        data.fetch("mnist", tmp_path, mirror=mirror)


def test_without_a_checksum_the_structure_is_checked(
    upstream: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mnist = CATALOGUE["mnist"]
    bare = tuple(replace(d, sha256="") for d in mnist.downloads)
    monkeypatch.setitem(CATALOGUE, "mnist", replace(mnist, downloads=bare))
    assert len(data.fetch("mnist", tmp_path / "good", mirror=upstream.as_uri())) == 4
    (upstream / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(b"not labels"))
    with pytest.raises(InputError, match="t10k-labels"):
        data.fetch("mnist", tmp_path / "bad", mirror=upstream.as_uri())
    assert not (tmp_path / "bad" / "mnist" / "t10k-labels-idx1-ubyte.gz").exists()


def test_md5_is_of_the_file_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "gzip.zip"
    file.write_bytes(b"an archive")
    emnist = CATALOGUE["emnist"]
    right = hashlib.md5(b"an archive", usedforsecurity=False).hexdigest()
    monkeypatch.setitem(
        CATALOGUE, "emnist", replace(emnist, downloads=(replace(emnist.downloads[0], md5=right),))
    )
    assert data.fetch("emnist", tmp_path / "data", mirror=tmp_path.as_uri()) == [
        tmp_path / "data/emnist/gzip.zip"
    ]
    with pytest.raises(InputError, match="md5"):
        data.fetch("emnist-letters", tmp_path / "other", mirror=tmp_path.as_uri())


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="data_dir"):
        data.fetch("mnist", tmp_path / "file")
