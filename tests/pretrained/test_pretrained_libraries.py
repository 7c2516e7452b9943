"""Hugging Face's own models, tiny and random, and peft's LoRA on them: the engine, the check, a run."""

from __future__ import annotations

import copy
import os
import warnings
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is fetched

import pytest
import torch
from pretrained_helpers import CLASSES, assert_agrees, labels, next_words, shaken
from torch import Tensor, nn

import saltflat as sf
from core_helpers import plan_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what the libraries say when they are imported
    transformers = pytest.importorskip("transformers", reason="pip install 'saltflat[transformers]'")
    peft = pytest.importorskip("peft", reason="pip install 'saltflat[transformers]'")

PARTS = ("all", "last-layer", "bias-only", "lora")
SMALL: dict[str, Any] = {"vocab_size": 31, "max_position_embeddings": 24, "num_labels": CLASSES}
BERT = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def tokens(rows: int = 6) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(2, 31, (rows, 9), generator=generator)
    mask = (torch.arange(9)[None] < torch.randint(3, 10, (rows, 1), generator=generator)).long()
    return {"input_ids": torch.where(mask == 1, ids, 1), "attention_mask": mask}


def pixels(rows: int = 6) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(rows, 3, 8, 8, generator=torch.Generator().manual_seed(0))}


def build(name: str, attention: str = "sdpa") -> nn.Module:
    """A tiny model with random weights."""
    t, more = transformers, {"attn_implementation": attention}
    torch.manual_seed(0)
    match name:
        case "bert":
            return t.BertForSequenceClassification._from_config(t.BertConfig(**SMALL, **BERT), **more)
        case "roberta":
            config = t.RobertaConfig(**SMALL | BERT, pad_token_id=1)
            return t.RobertaForSequenceClassification._from_config(config, **more)
        case "distilbert":
            config = t.DistilBertConfig(**SMALL, dim=16, n_layers=2, n_heads=2, hidden_dim=32)
            return t.DistilBertForSequenceClassification._from_config(config, **more)
        case "gpt2":
            config = t.GPT2Config(
                vocab_size=31,
                n_positions=24,
                n_embd=16,
                n_layer=2,
                n_head=2,
                num_labels=CLASSES,
                pad_token_id=1,
            )
            return t.GPT2ForSequenceClassification._from_config(config, **more)
        case "gpt2-words":
            config = t.GPT2Config(
                vocab_size=31, n_positions=24, n_embd=16, n_layer=2, n_head=2, use_cache=False
            )
            return t.GPT2LMHeadModel._from_config(config, **more)
        case "llama":
            config = t.LlamaConfig(**SMALL, **BERT, num_key_value_heads=1, pad_token_id=1, use_cache=False)
            return t.LlamaForSequenceClassification._from_config(config, **more)
        case "vit":
            config = t.ViTConfig(**BERT, image_size=8, patch_size=4, num_labels=CLASSES)
            return t.ViTForImageClassification._from_config(config, **more)
    raise AssertionError(name)


def rows_for(name: str) -> tuple[Any, Tensor]:
    if name == "vit":
        return pixels(), labels()
    if name == "gpt2-words":
        return {"input_ids": tokens()["input_ids"]}, tokens()["input_ids"]
    return tokens(), labels()


NAMES = ("bert", "roberta", "distilbert", "gpt2", "gpt2-words", "llama", "vit")


def agreed(name: str, model: nn.Module, **more: Any) -> dict[str, str]:
    inputs, targets = rows_for(name)
    if name == "gpt2-words":
        more["loss_fn"] = next_words
    return assert_agrees(shaken(model.eval()), inputs, targets, **more)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", NAMES)
def test_norms_and_sums_are_those_of_explicit_gradients(name: str, part: Any) -> None:
    model = sf.models.tune_only(build(name), part)
    rules = agreed(name, model)
    assert set(rules) == {n for n, p in model.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("name", NAMES)
def test_attention_written_out(name: str) -> None:
    model = build(name, "eager")
    assert model.config._attn_implementation == "eager"
    assert set(agreed(name, model)) == {n for n, p in model.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("name", ["bert", "gpt2", "vit"])
@pytest.mark.parametrize("part", ["all", "lora"])
def test_checkpoints_in_training_mode(name: str, part: Any) -> None:
    model = build(name)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    model.config.attention_probs_dropout_prob = 0.0
    sf.models.tune_only(model, part)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    inputs, targets = rows_for(name)
    assert_agrees(shaken(model.train()), inputs, targets)


@pytest.mark.parametrize("name", NAMES)
def test_tensors_without_a_gradient(name: str) -> None:
    """All get one, but where Hugging Face's model has a part that the loss does not reach."""
    inputs, targets = rows_for(name)
    loss = next_words if name == "gpt2-words" else None
    model = build(name)
    assert sf.check_gradients(model, (inputs, targets), loss).idle == ()
    low = sf.models.tune_only(model, "lora")
    found = sf.check_gradients(low, (inputs, targets), loss)
    assert not found.idle
    assert {f for n, f in found.found.items() if ".lora_A." in n} == {"later"}


def test_an_encoder_under_a_head_has_a_pooler_that_nothing_reaches() -> None:
    torch.manual_seed(0)
    encoder = transformers.BertModel(transformers.BertConfig(**SMALL, **BERT))
    model = sf.models.with_head(encoder, CLASSES)
    with pytest.raises(sf.InputError, match=r"encoder\.pooler\.dense\.weight, encoder\.pooler\.dense\.bias"):
        sf.fit(model, (tokens(40), labels(40)), plan_of(), progress=False)
    sf.models.tune_only(model, "all", freeze=("*pooler*",))
    run = sf.fit(model, (tokens(40), labels(40)), plan_of(), evaluate=(tokens(9), labels(9)), progress=False)
    assert run.accuracy is not None


@pytest.mark.parametrize("part", PARTS)
def test_a_whole_run_with_dropout(part: Any) -> None:
    model = sf.models.tune_only(build("bert"), part)
    rows = sf.fit(
        model, (tokens(40), labels(40)), plan_of(steps=2), evaluate=(tokens(9), labels(9)), progress=False
    )
    assert rows.accuracy is not None
    assert set(rows.rules) == {n for n, p in model.named_parameters() if p.requires_grad}


def test_what_a_tokenizer_returns_is_taken_as_it_is() -> None:
    encoded = transformers.BatchEncoding(tokens(40))
    run = sf.fit(build("bert"), (encoded, labels(40)), plan_of(), progress=False)
    assert run.predict(transformers.BatchEncoding(tokens(9))).shape == (9,)


OWN_PEFT: dict[str, tuple[str, dict[str, Any]]] = {
    "some layers": ("LoraConfig", {"r": 4, "target_modules": ["query", "value"]}),
    "every layer, biases, ranks scaled": (
        "LoraConfig", {"r": 2, "target_modules": "all-linear", "bias": "lora_only", "use_rslora": True},
    ),
    "lengths apart from directions": ("LoraConfig", {"r": 2, "target_modules": ["query"], "use_dora": True}),
    "factors": ("IA3Config", {"target_modules": ["key", "value"], "feedforward_modules": []}),
}  # fmt: skip


@pytest.mark.parametrize("case", OWN_PEFT)
def test_a_model_that_somebody_else_wrapped_in_peft(case: str) -> None:
    """``peft.get_peft_model`` itself, not `tune_only`: the engine, the check and a run see what it trains."""
    kind, settings = OWN_PEFT[case]
    model = peft.get_peft_model(build("bert"), getattr(peft, kind)(task_type="SEQ_CLS", **settings))
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    assert any("classifier" in name for name in trained)
    assert not any("embeddings" in name for name in trained)
    found = sf.check_gradients(model, (tokens(), labels()))
    assert (set(found.found), found.idle) == (trained, ())
    assert set(agreed("bert", copy.deepcopy(model))) == trained
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    sf.fit(model, (tokens(40), labels(40)), plan_of(steps=2), progress=False)
    moved = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    assert moved == trained


def test_merged_lora_is_the_plain_model_again() -> None:
    model = sf.models.tune_only(build("gpt2"), "lora").eval()
    shaken(model)
    before = model(**tokens()).logits
    sf.models.merge_lora(model)
    assert {n for n, _ in model.named_parameters()} == {n for n, _ in build("gpt2").named_parameters()}
    torch.testing.assert_close(model(**tokens()).logits, before)
