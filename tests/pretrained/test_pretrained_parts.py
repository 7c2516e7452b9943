"""`tune_only`: which weights are trained, and what is refused."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from pretrained_helpers import CLASSES, LanguageModel, TextEncoder, VisionTransformer, labels, shaken, texts
from torch import nn

import saltflat as sf
from core_helpers import plan_of
from saltflat.errors import InputError, MissingDependencyError
from saltflat.models import merge_lora, tune_only, with_head


def trained(model: nn.Module) -> set[str]:
    return {name for name, p in model.named_parameters() if p.requires_grad}


def test_each_part_of_an_encoder() -> None:
    model = TextEncoder()
    everything = trained(tune_only(model, "all"))
    assert everything == {name for name, _ in model.named_parameters()}
    head = trained(tune_only(model, "last-layer"))
    assert head == {"classifier.weight", "classifier.bias"}
    biases = trained(tune_only(model, "bias-only"))
    assert biases == {name for name in everything if name.endswith("bias")} | head
    assert trained(tune_only(model, "all")) == everything  # and back again


def test_the_head_may_be_named_and_may_be_several_layers() -> None:
    model = VisionTransformer()
    assert trained(tune_only(model, "last-layer", head="norm")) == {"norm.weight", "norm.bias"}
    found = trained(tune_only(TextEncoder(), "last-layer", head="blocks.1"))
    assert found
    assert all(name.startswith("blocks.1.") for name in found)


def test_frozen_patterns_win() -> None:
    found = trained(tune_only(TextEncoder(), "all", freeze=("*pooler*", "words.*")))
    assert not any("pooler" in name or name.startswith("words") for name in found)
    assert "classifier.weight" in found


def test_lora_starts_where_the_model_was_and_is_all_that_is_trained() -> None:
    torch.manual_seed(0)
    model = TextEncoder().eval()
    before = model(**texts()).logits
    tune_only(model, "lora", rank=3)
    assert torch.equal(model(**texts()).logits, before)
    found = trained(model)
    assert {name for name in found if ".lora_" not in name} == {"classifier.weight", "classifier.bias"}
    assert model.get_parameter("blocks.0.up.lora_A.default.weight").shape == (3, 16)
    assert not any("classifier" in name and "lora" in name for name, _ in model.named_parameters())


def test_lora_may_be_added_to_some_layers_and_to_turned_ones() -> None:
    some = trained(tune_only(TextEncoder(), "lora", layers=("query", "blocks.1.attention.value")))
    layers = {name.partition(".lora_")[0] for name in some if ".lora_" in name}
    assert layers == {"blocks.0.attention.query", "blocks.1.attention.query", "blocks.1.attention.value"}


def test_the_head_is_left_out_by_its_whole_name() -> None:
    """A head named 1 leaves the layer 0.1 in."""
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), nn.Linear(4, 2))
    found = trained(tune_only(model, "lora"))
    assert {name.partition(".lora_")[0] for name in found if ".lora_" in name} == {"0.0", "0.1"}
    assert {name for name in found if ".lora_" not in name} == {"1.weight", "1.bias"}


def test_merging_lora_keeps_what_the_model_computes() -> None:
    torch.manual_seed(0)
    model = TextEncoder().eval()
    names = {name for name, _ in model.named_parameters()}
    shaken(tune_only(model, "lora"))
    before = model(**texts()).logits
    merge_lora(model)
    assert {name for name, _ in model.named_parameters()} == names
    torch.testing.assert_close(model(**texts()).logits, before)


def test_a_whole_run_with_lora_moves_lora_and_the_head_only() -> None:
    torch.manual_seed(0)
    model = tune_only(TextEncoder(), "lora", rank=2)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    run = sf.fit(model, (texts(40), labels(40)), plan_of(), evaluate=(texts(9, 1), labels(9)), progress=False)
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert moved == trained(model)
    assert run.accuracy is not None


def test_a_head_on_an_encoder() -> None:
    class Outputs:
        def __init__(self, hidden: torch.Tensor) -> None:
            self.last_hidden_state = hidden

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(23, 8)

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> Outputs:
            return Outputs(self.words(input_ids))

    torch.manual_seed(0)
    model, rows = with_head(Encoder(), CLASSES, width=8), texts()
    logits = model(**rows)
    assert logits.shape == (6, CLASSES)
    changed = dict(rows, input_ids=torch.where(rows["attention_mask"] == 1, rows["input_ids"], 5))
    assert torch.equal(model(**changed), logits)  # padding is not looked at
    first = with_head(Encoder(), CLASSES, width=8, pooling="first")
    alone = {"input_ids": rows["input_ids"][:, :1]}
    assert torch.allclose(first(**alone), first(input_ids=rows["input_ids"]))
    assert trained(tune_only(model, "last-layer")) == {"head.weight", "head.bias"}


CLOSED = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.Linear(8, 2))
BAD: dict[str, tuple[Any, str]] = {
    "an unknown part": (lambda: tune_only(TextEncoder(), "loar"), "Did you mean 'lora'"),  # type: ignore[arg-type]
    "an unknown head": (lambda: tune_only(TextEncoder(), "last-layer", head="clasifier"), "'classifier'"),
    "no head": (lambda: tune_only(nn.Embedding(3, 2), "last-layer"), "no layer looks like one"),
    "a pattern without a match": (lambda: tune_only(TextEncoder(), "all", freeze=("poler*",)), "matches none"),
    "nothing left": (lambda: tune_only(TextEncoder(), "last-layer", freeze=("*",)), "leave something to train"),
    "an unknown layer": (lambda: tune_only(TextEncoder(), "lora", layers=("qury",)), "is none"),
    "no layer": (lambda: tune_only(nn.Sequential(nn.Linear(2, 2)), "lora"), "no linear layer is left"),
    "a rank of zero": (lambda: tune_only(TextEncoder(), "lora", rank=0), "rank >= 1"),
    "a scale below zero": (lambda: tune_only(TextEncoder(), "lora", alpha=-1.0), "alpha > 0"),
    "LoRA twice": (lambda: tune_only(tune_only(TextEncoder(), "lora"), "lora"), "is there already"),
    "layers that torch reads by itself": (
        lambda: tune_only(CLOSED, "lora", layers=("linear1",)), "would pass LoRA by"),
    "a head without a width": (lambda: with_head(nn.Linear(2, 2), 3), "width is missing"),
    "one class": (lambda: with_head(nn.Linear(2, 2), 1, width=2), "classes >= 2"),
    "an unknown pooling": (lambda: with_head(nn.Linear(2, 2), 3, width=2, pooling="max"), "mean, first"),  # type: ignore[arg-type]
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_is_refused(name: str) -> None:
    call, complaint = BAD[name]
    with pytest.raises(InputError, match=complaint):
        call()


def test_without_peft_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    model = LanguageModel()
    before = trained(model)
    with pytest.raises(MissingDependencyError, match=r"pip install 'saltflat\[transformers\]'"):
        tune_only(model, "lora")
    assert trained(model) == before  # nothing was changed
