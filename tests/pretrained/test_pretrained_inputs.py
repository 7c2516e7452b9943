"""Named inputs and outputs with logits, from one end to the other: fit, evaluate, predict, geometry, run folders."""

from __future__ import annotations

from collections import UserDict
from pathlib import Path
from typing import Any

import pytest
import torch
from pretrained_helpers import CLASSES, WIDTH, LanguageModel, TextEncoder, labels, next_words, texts
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import saltflat as sf
from core_helpers import plan_of
from saltflat.data.source import Examples, as_source
from saltflat.errors import InputError
from saltflat.geometry import Loss
from saltflat.training.evaluate import evaluate, predict

ROWS, LABELS = texts(40), labels(40)


class Columns(Dataset[Any]):
    """Rows that are dicts of lists of numbers, as tokenised data sets have them."""

    def __init__(self, label: str = "label", **more: Any) -> None:
        self.rows = [
            {key: value[i].tolist() for key, value in ROWS.items()} | {label: int(LABELS[i])} | more
            for i in range(40)
        ]

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.rows[index]


def collated(rows: list[dict[str, Any]]) -> UserDict[str, Tensor]:
    """As a tokenizer's own collator does it: a mapping that is no dict."""
    return UserDict({key: torch.tensor([row[key] for row in rows]) for key in rows[0]})


FORMS: dict[str, Any] = {
    "a pair": (ROWS, LABELS),
    "a tokenizer's mapping and labels": (UserDict(ROWS), LABELS),
    "lists": ({key: value.tolist() for key, value in ROWS.items()}, LABELS.tolist()),
    "columns with labels": dict(ROWS, labels=LABELS),
    "a mapping with labels": UserDict(dict(ROWS, labels=LABELS)),
    "a data set of dicts": Columns(),
    "a data set with labels": Columns("labels"),
    "a loader": DataLoader(Columns(), batch_size=8, shuffle=True),
    "a loader that collates": DataLoader(Columns("labels"), batch_size=8, collate_fn=collated),
}


def weights_after(data: Any) -> list[Tensor]:
    torch.manual_seed(0)
    model = TextEncoder()
    sf.fit(model, data, plan_of(), seed=1, progress=False)
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("form", FORMS)
def test_the_same_texts_in_any_form_give_the_same_run(form: str) -> None:
    for a, b in zip(weights_after(FORMS[form]), weights_after((ROWS, LABELS))):
        assert torch.equal(a, b)


def test_columns_that_are_no_numbers_are_named() -> None:
    with pytest.raises(InputError, match=r"'text' is a column that cannot be a tensor"):
        as_source(Columns(text="a word")).fetch(torch.arange(2))
    with pytest.raises(InputError, match="'labels' or 'label'"):
        as_source(Columns("topic")).fetch(torch.arange(2))
    with pytest.raises(InputError, match="not a data set"):
        as_source(dict(ROWS))
    with pytest.raises(InputError, match="'labels' or 'label'"):
        as_source(dict(ROWS, label=LABELS, labels=LABELS))


def test_an_empty_batch_of_columns_has_their_form() -> None:
    inputs, targets = as_source(Columns()).fetch(torch.arange(0))
    assert {key: tuple(value.shape) for key, value in inputs.items()} == dict.fromkeys(ROWS, (0, 7))
    assert len(targets) == 0


def test_logits_are_found_everywhere() -> None:
    torch.manual_seed(0)
    model = TextEncoder()
    data = Examples(ROWS, LABELS, num_classes=CLASSES)
    right = float((model(**ROWS).logits.argmax(1) == LABELS).float().mean())
    assert evaluate(model, data)["accuracy"] == pytest.approx(right)
    assert torch.allclose(predict(model, UserDict(ROWS)), model.eval()(**ROWS).logits, atol=1e-6)
    assert Loss(model, data).measure().accuracy == pytest.approx(right)
    assert Loss(model, data).in_bfloat16().measure().accuracy is not None
    found = sf.evaluate_privately(model, data, epsilon=1.0, delta=1e-5, size=40)
    assert 0 <= found.accuracy <= 1


def test_curvature_of_a_text_encoder() -> None:
    """Named inputs, frozen parts and outputs with logits: the Hessian is that of the trained weights."""
    torch.manual_seed(0)
    model = sf.models.tune_only(TextEncoder(), "last-layer").double()
    loss = Loss(model, (ROWS, LABELS), dtype=torch.float64)
    assert loss.dimension == CLASSES * (WIDTH + 1)
    vector = torch.randn(loss.dimension, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    step = 1e-5
    difference = (
        loss.gradient(loss.weights + step * vector) - loss.gradient(loss.weights - step * vector)
    ) / (2 * step)
    assert torch.allclose(loss.hessian_times(vector), difference, atol=1e-7)


def test_an_encoder_without_a_head_is_told_to_get_one() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(23, 4)

        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
            return {"last_hidden_state": self.words(input_ids)}

    with pytest.raises(InputError, match=r"sf\.models\.with_head"):
        sf.fit(Bare(), (ROWS, LABELS), plan_of(), progress=False)


def test_a_tied_language_model_with_a_loss_of_its_own_in_a_run_folder(tmp_path: Path) -> None:
    torch.manual_seed(0)
    ids = ROWS["input_ids"]
    model, plan = LanguageModel(), plan_of(steps=3)
    run = sf.fit(
        model, ({"input_ids": ids}, ids), plan, loss_fn=next_words, out=tmp_path / "run", progress=False,
        evaluate=({"input_ids": ids[:5]}, ids[:5]),
    )  # fmt: skip
    assert "loss" in run.history[-1]
    assert model.lm_head.weight is model.wte.weight
    assert sf.verify(tmp_path / "run").passed
    again = LanguageModel()
    sf.fit(
        again, ({"input_ids": ids}, ids), plan, loss_fn=next_words, resume=tmp_path / "run", progress=False
    )
    assert torch.equal(again.wte.weight, model.wte.weight)


def test_a_run_with_lora_goes_on_after_it_was_cut_off(tmp_path: Path) -> None:
    def fresh() -> nn.Module:
        torch.manual_seed(0)
        return sf.models.tune_only(TextEncoder(), "lora", rank=2)

    def settings(**more: Any) -> dict[str, Any]:
        return {"seed": 4, "progress": False, "checkpoint_every": 0, **more}

    plan, whole = plan_of(steps=4), fresh()
    sf.fit(whole, (ROWS, LABELS), plan, **settings())

    class Stop(Exception):
        pass

    def stop(step: Any) -> None:
        if step.number == 2:
            raise Stop

    with pytest.raises(Stop):
        sf.fit(fresh(), (ROWS, LABELS), plan, callbacks=[stop], out=tmp_path / "run", **settings())
    resumed = fresh()
    sf.fit(resumed, (ROWS, LABELS), resume=tmp_path / "run", **settings(seed=None))
    for a, b in zip(resumed.parameters(), whole.parameters()):
        assert torch.equal(a, b)
