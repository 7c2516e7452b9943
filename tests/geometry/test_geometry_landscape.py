"""Planes, lines and rays around a model, on losses that are known in closed form."""

from __future__ import annotations

import math

import pytest
import torch
from geometry_helpers import network
from torch import nn

from saltflat.data import load
from saltflat.errors import InputError
from saltflat.geometry import (
    Loss,
    Settings,
    compare,
    filter_normalised,
    gradient_norms,
    interpolation,
    landscape,
    measure,
    rows_of,
    variance_of_last,
    wideness,
    wideness_gain,
)
from saltflat.geometry.rows import PUBLIC, TEST, TRAIN, as_rows
from saltflat.geometry.smooth import pooled_first, without_weights


def bowl(width: float = 1.0, size: int = 6) -> Loss:
    """½ ‖w/width − 1‖² / size: squared error of a linear model on unit vectors, with its minimum at ``width``."""
    model = nn.Linear(size, 1, bias=False).double()
    nn.init.constant_(model.weight, width)
    inputs = torch.eye(size, dtype=torch.float64) / width
    return Loss(model, (inputs, torch.ones(size, dtype=torch.float64)))


def test_directions_are_as_long_as_filters_and_leave_biases_alone() -> None:
    loss = Loss(*network("convolutional"))
    weights, direction = loss.named(loss.weights), loss.named(filter_normalised(loss, 1))
    for name, weight in weights.items():
        if weight.dim() < 2:
            assert not direction[name].any()
        else:
            lengths = direction[name].flatten(1).norm(dim=1)
            torch.testing.assert_close(lengths, weight.flatten(1).norm(dim=1))
    assert not torch.equal(filter_normalised(loss, 1), filter_normalised(loss, 2))
    assert torch.equal(filter_normalised(loss, 1), filter_normalised(loss, 1))


def test_the_landscape_of_a_bowl_is_its_formula() -> None:
    """An uneven bowl: in an even one both directions look alike. Fails when alpha and beta are exchanged."""
    steep = torch.arange(1, 7, dtype=torch.float64)
    model = nn.Linear(6, 1, bias=False).double()
    nn.init.constant_(model.weight, 1.0)
    loss = Loss(model, (torch.diag(steep), steep))
    first, second = filter_normalised(loss, 10), filter_normalised(loss, 11)
    plane = landscape(loss, 5, span=2.0, seed=5)
    for i, alpha in enumerate(plane.alpha):
        for j, beta in enumerate(plane.beta):
            exact = 0.5 * float((steep * (alpha * first + beta * second)).square().mean())
            assert plane.loss[i][j] == pytest.approx(exact, abs=1e-12)


def test_less_precision_is_enough_for_a_picture() -> None:
    """Asked for, or where it pays; never where it differs by more than a hundredth."""
    loss = Loss(*network("convolutional"), dtype=torch.float32)
    exact, short = (landscape(loss, 5, precision=name) for name in ("float32", "bfloat16"))
    assert (exact.precision, short.precision, landscape(loss, 3).precision) == (
        "float32",
        "bfloat16",
        "float32",
    )
    pairs = [(a, b) for row, other in zip(exact.loss, short.loss) for a, b in zip(row, other)]
    assert all(abs(a - b) <= 0.02 * abs(a) for a, b in pairs)
    assert any(a != b for a, b in pairs)
    with pytest.raises(InputError, match="'float32' or 'bfloat16'"):
        landscape(loss, 3, precision="half")


def test_a_cheaper_order_gives_the_same_numbers() -> None:
    """To the bit. Fails when a function that falls is moved past the largest: LeakyReLU of −1 is |x|."""
    torch.manual_seed(0)
    maps = torch.randn(5, 4, 9, 9)
    rising = [nn.SELU(), nn.ReLU(), nn.ELU(0.5), nn.LeakyReLU(0.1), nn.Tanh()]
    falling = [nn.LeakyReLU(-1.0), nn.GELU()]
    for bent, rises in [*((each, True) for each in rising), *((each, False) for each in falling)]:
        model = nn.Sequential(
            nn.Identity(), nn.Conv2d(4, 6, 3), bent, nn.MaxPool2d(2, padding=1), nn.Flatten()
        )
        exact = model(maps)
        before, rest = without_weights(pooled_first(model))
        assert torch.equal(rest(before(maps)), exact), bent
        assert isinstance(model[2], nn.MaxPool2d) == rises, bent
        assert len(list(before)) == 1


def test_a_large_landscape_stays_exact_where_rounding_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    from saltflat.geometry.landscape import _asked

    loss = Loss(*network("convolutional"), dtype=torch.float32)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True}, raising=False)
    points = int((100_000 / len(loss)) ** 0.5) + 1
    assert _asked(loss, points, None) is not loss
    monkeypatch.setattr(
        Loss, "measure", lambda self, at=None: type("M", (), {"loss": 1.0 + 0.1 * self._short})()
    )
    assert _asked(loss, points, None) is loss


def test_the_line_through_two_models() -> None:
    model, rows = network("mlp")
    loss = Loss(model, rows)
    other = loss.weights + torch.randn(loss.dimension, dtype=torch.float64)
    line = interpolation(loss, loss.weights, other)
    assert (line.at[0], line.at[-1], len(line.at)) == (-0.5, 1.5, 41)
    here, there = line.at.index(0.0), line.at.index(1.0)
    assert line.loss[here] == pytest.approx(loss.measure().loss)
    assert (line.loss[there], line.accuracy[there]) == (
        pytest.approx(loss.measure(other).loss), loss.measure(other).accuracy,
    )  # fmt: skip
    with pytest.raises(InputError, match="as many weights"):
        interpolation(loss, loss.weights, torch.zeros(3, dtype=torch.float64))


def test_wideness_of_bowls() -> None:
    """On a bowl every ray rises alike; one that is twice as wide rises a quarter as much."""
    narrow, wide = (wideness(bowl(width), rays=4, points=5, reach=2.0) for width in (1.0, 2.0))
    for distance, loss, spread in zip(narrow.distance, narrow.loss, narrow.spread):
        assert loss == pytest.approx(0.5 * distance**2 / 6)
        assert spread == pytest.approx(0.0, abs=1e-12)
    assert wide.loss == pytest.approx([value / 4 for value in narrow.loss])
    assert narrow.accuracy is None
    assert wideness_gain(narrow, wide) == pytest.approx(75.0)
    assert wideness_gain(wide, narrow) == pytest.approx(-300.0)
    with pytest.raises(InputError, match="same distances"):
        wideness_gain(narrow, wideness(bowl(), rays=1, points=5, reach=1.0))


def test_wideness_in_accuracy() -> None:
    model, rows = network("mlp")
    found = wideness(Loss(model, rows), rays=3, points=4, seed=1)
    assert found.accuracy is not None
    assert found.mean_accuracy == pytest.approx(sum(found.accuracy) / 4)
    assert found.distance[-1] == pytest.approx(float(Loss(model, rows).weights.norm()) / 2)


def test_gradient_norms_are_those_of_single_examples() -> None:
    model, rows = network("mlp")
    loss = Loss(model, rows)
    single = [
        float(Loss(model, (rows[0][i : i + 1], rows[1][i : i + 1])).gradient().norm()) for i in range(12)
    ]
    clip_norm = sorted(single)[5] * 1.0001
    found = gradient_norms(loss, clip_norm, bins=8)
    assert found.share_clipped == pytest.approx(6 / 12)
    assert found.largest == pytest.approx(max(single))
    expected = torch.histogram(torch.tensor(single, dtype=torch.float64), torch.tensor(found.edges).double())
    assert found.counts == expected.hist.long().tolist()
    assert sum(found.counts) == 12
    assert variance_of_last([3.0]) is None


def test_only_asking_twice_gives_private_rows() -> None:
    data = load("digits", public_fraction=0.1)
    assert rows_of(data).covered == PUBLIC
    assert rows_of(data, "test").covered == TEST
    with pytest.raises(InputError, match="private=True"):
        rows_of(data, "train")
    private = rows_of(data, "train", private=True)
    assert private.covered == TRAIN
    assert private.is_private
    assert rows_of(load("digits", provenance="public"), "train").covered == PUBLIC
    with pytest.raises(InputError, match="no such rows"):
        rows_of(load("digits"), "public")
    with pytest.raises(InputError, match="one of"):
        rows_of(data, "everything")  # type: ignore[arg-type]
    assert as_rows(data.public).covered == PUBLIC
    assert as_rows((torch.zeros(2, 1), torch.zeros(2))).covered == "not covered by ε"


def test_plain_data_has_what_was_asked_for_and_the_label() -> None:
    model, rows = network("mlp")
    loss = Loss(model, rows)
    settings = Settings(parts=("spectrum", "density", "wideness", "gradients"), rays=2, probes=3, top=6)
    history = [{"accuracy": value, "step": 1} for value in (0.1, 0.5, 0.75)]
    found = measure(loss, settings, run="a", clip_norm=0.5, history=history)
    assert found["landscape"] is None
    assert found["data"] == {"name": "rows", "split": "test", "rows": 12, "covered": "not covered by ε"}
    assert found["lambda_max"] == found["eigenvalues"][0]
    assert found["lambda_ratio"] == pytest.approx(found["eigenvalues"][0] / found["eigenvalues"][4])
    assert len(found["eigenvalues"]) == 6
    assert set(found["trace"]) == {"value", "error"}
    assert len(found["density"]["eigenvalue"]) == len(found["density"]["density"])
    assert found["last_iterates"]["accuracy_variance"] == pytest.approx(variance_of_last([0.1, 0.5, 0.75]))
    assert found["gradient_norms"]["clip_norm"] == 0.5
    for wrong in ({"parts": ("spectrun",)}, {"rays": 0}, {"tolerance": -1.0}, {"points": 1}):
        with pytest.raises(InputError):
            Settings(**wrong)  # type: ignore[arg-type]


def test_figures_that_are_not_finite_become_none() -> None:
    model, rows = network("mlp")
    broken = Loss(model, rows)
    broken.weights = broken.weights * math.inf
    assert measure(broken, Settings(parts=()))["loss"] is None


def test_models_of_two_architectures_have_no_line() -> None:
    first, second = Loss(*network("mlp")), Loss(*network("tied"))
    with pytest.raises(InputError, match="one architecture"):
        compare(first, second, runs=("a", "b"))
    again = compare(first, first, Settings(rays=2), runs=("a", "a"), train=first)
    assert again["wideness_gain"] == 0.0
    assert again["train"] == again["test"]
    assert set(again) >= {"format", "runs", "alpha", "test", "train", "wideness_gain"}
