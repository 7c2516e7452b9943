"""Class folders of images that belong to the user."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from data_writers import image_bytes, pixels, write_files, write_tar

from saltflat import data
from saltflat.errors import InputError, MissingDependencyError

ONE_LEVEL = {
    f"{label}/{at}.png": image_bytes(pixels(6, 4, 3, seed=at)) for label in ("cat", "dog") for at in range(5)
}
TWO_LEVELS = {f"{part}/{name}": content for part in ("train", "test") for name, content in ONE_LEVEL.items()}


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    write_files(tmp_path / "pets", ONE_LEVEL)
    return tmp_path / "pets"


@pytest.mark.parametrize("archive", [None, ".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2"])
@pytest.mark.parametrize("prefix", ["", "pets/"])
def test_train_and_test_folders(tmp_path: Path, archive: str | None, prefix: str) -> None:
    members = {"pets/notes.txt": b"not an image", "pets/train/cat/.hidden.png": b"nor this"}
    members |= {prefix + name: content for name, content in TWO_LEVELS.items()}
    path = tmp_path / f"pets{archive or ''}"
    if archive:
        write_tar(path, members)
    else:
        write_files(
            tmp_path, {"pets/" + name.removeprefix("pets/"): content for name, content in members.items()}
        )
    loaded = data.load(path)
    assert loaded.train.inputs.shape == (10, 3, 6, 4)
    expected = torch.from_numpy(pixels(6, 4, 3, seed=4)).permute(2, 0, 1).float()
    torch.testing.assert_close(loaded.train.inputs[4] * 255, expected)
    assert loaded.train.targets.tolist() == [0] * 5 + [1] * 5
    assert loaded.test is not None
    assert loaded.classes == ("cat", "dog")
    assert loaded.name == path.name


def test_one_level_has_no_test_part_unless_one_is_declared(pictures: Path) -> None:
    assert data.load(pictures).test is None
    loaded = data.load(pictures, test_fraction=0.3)
    assert loaded.test is not None
    assert (len(loaded.train), len(loaded.test)) == (7, 3)


def test_classes_from_folder_names_count_as_public(pictures: Path) -> None:
    loaded = data.load(pictures)
    assert not loaded.classes_declared
    assert "read from the folder names" in loaded.note
    declared = data.load(pictures, classes=["dog", "bird", "cat"])
    assert declared.classes_declared
    assert declared.note == ""
    assert declared.num_classes == 3
    assert declared.train.targets.tolist() == [2] * 5 + [0] * 5


def test_an_undeclared_class_folder_is_refused(pictures: Path) -> None:
    with pytest.raises(InputError, match="'dog'"):
        data.load(pictures, classes=["cat", "bird"])
    (pictures / "empty").mkdir()
    with pytest.raises(InputError, match="'empty'"):
        data.load(pictures, classes=["cat", "dog"])
    assert data.load(pictures).classes == ("cat", "dog", "empty")


def test_images_of_several_sizes_are_refused_or_resized(pictures: Path) -> None:
    write_files(pictures, {"dog/large.png": image_bytes(pixels(9, 9, 3))})
    with pytest.raises(InputError, match=r"large\.png.*\n.*image_size"):
        data.load(pictures)
    assert data.load(pictures, image_size=(5, 7)).train.inputs.shape == (11, 3, 5, 7)
    assert data.load(pictures, image_size=8).train.inputs.shape == (11, 3, 8, 8)


def test_grey_images_have_one_channel_unless_mixed(tmp_path: Path) -> None:
    write_files(tmp_path, {f"{label}/1.png": image_bytes(pixels(4, 4)) for label in "ab"})
    assert data.load(tmp_path).train.inputs.shape == (2, 1, 4, 4)
    write_files(tmp_path, {"b/2.png": image_bytes(pixels(4, 4, 3))})
    mixed = data.load(tmp_path).train.inputs
    assert mixed.shape == (3, 3, 4, 4)
    assert torch.equal(mixed[0, 0], mixed[0, 2])


def test_a_private_folder_is_not_copied_to_the_cache(pictures: Path, own_places: Path) -> None:
    data.load(pictures)
    assert not own_places.exists()


def test_a_broken_image_is_named(pictures: Path) -> None:
    (pictures / "cat" / "3.png").write_bytes(ONE_LEVEL["cat/3.png"][:-20])
    with pytest.raises(InputError, match=r"3\.png"):
        data.load(pictures)


def test_a_link_that_leads_nowhere_is_named(pictures: Path) -> None:
    (pictures / "cat" / "gone.png").symlink_to(pictures / "nothing")
    with pytest.raises(InputError, match=r"gone\.png"):
        data.load(pictures)


@pytest.mark.parametrize("names", [[], ["note.txt"], ["cat/note.txt"], ["test/cat/1.png"], ["1.png"]])
def test_folders_without_training_images_are_refused(tmp_path: Path, names: list[str]) -> None:
    root = tmp_path / "images"
    root.mkdir()
    write_files(root, {name: image_bytes(pixels(4, 4)) for name in names})
    if names == ["test/cat/1.png"]:  # a class called "test" that holds no image
        with pytest.raises(InputError, match="no training images"):
            data.load(root)
        return
    with pytest.raises(InputError, match="class folders"):
        data.load(root)


def test_a_tar_without_its_end_is_refused(tmp_path: Path) -> None:
    """An uncompressed tar that was cut between two members looks complete but for its closing zeros."""
    file = tmp_path / "pets.tar"
    write_tar(file, ONE_LEVEL)
    whole = file.read_bytes()
    file.write_bytes(whole[: 1024 * 4])
    with pytest.raises(InputError, match=r"pets\.tar"):
        data.load(file)


def test_pillow_is_asked_for_by_name(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingDependencyError, match=r"saltflat\[images\]"):
        data.load(pictures)
