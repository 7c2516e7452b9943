"""What the probe refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from engine_helpers import Fn, smooth_loss, targets_for
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from saltflat.engine import clipped_sum
from saltflat.errors import InputError, RefusedError

X = torch.randn(7, 5, 8, generator=torch.Generator().manual_seed(0))
IMAGES = torch.randn(7, 4, 6, 6, generator=torch.Generator().manual_seed(1))


def run(model: nn.Module, inputs: Any = X, loss_fn: Any = smooth_loss, **options: Any) -> Any:
    return clipped_sum(model, loss_fn, inputs, targets_for(7, torch.float32), 1.0, **options)


# --- refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm2d(4), nn.BatchNorm2d(4, track_running_stats=False).eval(), nn.SyncBatchNorm(4)]
)
def test_batch_norm_is_refused_by_name_with_the_cure(layer: nn.Module) -> None:
    """Fails when the name is not looked at (tried)."""
    with pytest.raises(RefusedError, match=r"BatchNorm\w* \(1\).*(?s:.*)make_private_friendly"):
        run(nn.Sequential(nn.Conv2d(4, 4, 3), layer), IMAGES)


def test_batch_norm_set_to_train_between_two_calls_is_refused() -> None:
    """Fails when a model is remembered by its own training mode alone (tried)."""
    model = nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4).eval())
    run(model, IMAGES)
    model[1].train()
    with pytest.raises(RefusedError, match="BatchNorm2d"):
        run(model, IMAGES)


MIXING = {
    "centred over the batch": lambda self, x: self.layer(x - x.mean(0)),
    "scaled by the largest": lambda self, x: self.layer(x / x.abs().amax(0, keepdim=True)),
    "attention over the batch": lambda self, x: self.layer((x[:, 0] @ x[:, 0].T).softmax(1) @ x[:, 0]),
    "the neighbour's features": lambda self, x: self.layer(x + 0.1 * x.roll(1, 0)),
    "centred after the layer": lambda self, x: (lambda y: y - y.mean(0))(self.layer(x)),
    "hidden from NaN": lambda self, x: self.layer(x - x.nan_to_num().mean(0)),
    "a function of the batch": lambda self, x: F.batch_norm(
        self.layer(x).transpose(1, 2), None, None, training=True
    ),
    "in the order of the data": lambda self, x: self.layer(x[x[:, 0, 0].argsort()]),
    "reversed": lambda self, x: self.layer(x.flip(0)),
}


@pytest.mark.parametrize("how", MIXING)
@pytest.mark.parametrize("rows", [1, 2, 7])
def test_a_model_that_mixes_examples_is_refused(how: str, rows: int) -> None:
    """Even if the first batch has one row. Fails without the poisoned row, and without unlike copies (tried)."""
    torch.manual_seed(0)
    model = Fn(MIXING[how], layer=nn.Linear(8, 3))
    with pytest.raises(RefusedError, match=r"examples mix|depends on the rest"):
        clipped_sum(model, smooth_loss, X[:rows], targets_for(rows, torch.float32), 1.0)


def test_a_model_that_mixes_tokens_across_examples_is_refused() -> None:
    """Whole numbers cannot be NaN. Fails when they are not changed (tried)."""
    model = Fn(lambda self, t: self.embed(t) - self.embed(t).mean(0), embed=nn.Embedding(10, 4))
    for rows in (1, 4):
        with pytest.raises(RefusedError, match=r"examples mix|depends on the rest"):
            clipped_sum(
                model, smooth_loss, torch.randint(0, 10, (rows, 1)), targets_for(rows, torch.float32), 1.0
            )


def test_a_loss_that_mixes_examples_is_refused() -> None:
    """Also if the same model was seen with another loss. Fails when losses are not told apart (tried)."""
    model = nn.Linear(8, 3)
    run(model)
    with pytest.raises(RefusedError, match="depends on the rest"):
        run(model, loss_fn=lambda o, t: smooth_loss(o, t) * smooth_loss(o, t).detach().mean())


@pytest.mark.parametrize("steps", [3, 4, 5, 6])
def test_a_batch_in_another_dimension_is_refused(steps: int) -> None:
    """Whatever the length of the other one. Fails without the look at the second dimension (tried)."""
    model = Fn(lambda self, x: self.layer(x.transpose(0, 1)).transpose(0, 1), layer=nn.Linear(8, 3))
    with pytest.raises(RefusedError, match="first dimension"):
        run(model, torch.randn(7, steps, 8))


def test_a_recurrent_layer_fed_the_wrong_way_is_refused() -> None:
    """Fails when neither outputs nor gradients are compared (tried)."""
    with pytest.raises(RefusedError, match="batch_first=True"):
        run(nn.LSTM(8, 4))


@pytest.mark.parametrize(
    "layer",
    [
        nn.InstanceNorm2d(4, track_running_stats=True),
        nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
    ],
)
def test_statistics_kept_by_instance_norm_are_refused(layer: nn.Module) -> None:
    """Fails when the name is not looked at: the buffer would be found, without the cure (tried)."""
    with pytest.raises(RefusedError, match="track_running_stats"):
        run(nn.Sequential(nn.Conv2d(4, 4, 3), layer), IMAGES)


@pytest.mark.parametrize("dtype", [torch.float32, torch.long])
def test_a_buffer_that_follows_the_data_is_refused(dtype: torch.dtype) -> None:
    """Fails when buffers are not compared, or only those with fractions (tried)."""

    def count(self: Any, x: Tensor) -> Tensor:
        self.seen += (x > 0).sum().to(dtype)
        return self.layer(x)

    with pytest.raises(RefusedError, match="buffer seen"):
        run(Fn(count, layer=nn.Linear(8, 3), seen=torch.zeros((), dtype=dtype)))


def test_a_counter_of_steps_is_not_refused() -> None:
    """Fails when the probe does not put buffers back (tried)."""

    def count(self: Any, x: Tensor) -> Tensor:
        self.steps += 1
        return self.layer(x)

    model = Fn(count, layer=nn.Linear(8, 3), steps=torch.zeros((), dtype=torch.long))
    run(model, micro_batch=7)
    assert int(model.steps) == 1  # the probe's own passes are taken back


@pytest.mark.parametrize("loss_fn", [lambda o, t: o.mean(), lambda o, t: o * t[:, None], lambda o, t: 3.0])
def test_a_loss_that_is_not_one_number_an_example_is_refused_with_the_cure(loss_fn: Any) -> None:
    """Fails when the shape is not checked: a scalar would be clipped as one example (tried)."""
    model = Fn(lambda self, x: self.layer(x)[:, 0], layer=nn.Linear(8, 1))
    with pytest.raises(InputError, match='reduction="none"'):
        run(model, loss_fn=loss_fn)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"max_norm": 1.0}, "max_norm"), ({"scale_grad_by_freq": True}, "scale_grad_by_freq")],
)
@pytest.mark.parametrize("layer", [nn.Embedding, nn.EmbeddingBag])
def test_options_of_embeddings_that_look_across_the_batch_are_refused(
    layer: Any, options: Any, message: str
) -> None:
    """Fails when the options are passed over (tried)."""
    with pytest.raises(RefusedError, match=message):
        run(layer(10, 4, **options), torch.randint(0, 10, (7, 5)))


def test_layers_without_parameters_yet_are_refused() -> None:
    """Fails when the probe runs them, which gives them the shape of private data (tried)."""
    with pytest.raises(RefusedError, match="do not exist yet"):
        run(nn.Sequential(nn.LazyLinear(3)))


def test_short_floating_point_weights_are_refused() -> None:
    """A norm in bfloat16 has three digits. Fails without the check (tried)."""
    with pytest.raises(InputError, match=r"float32.*(?s:.*)autocast"):
        run(nn.Linear(8, 3).to(torch.bfloat16), X.to(torch.bfloat16))


@pytest.mark.filterwarnings(
    "ignore:None of the inputs have requires_grad:UserWarning"
)  # of torch, without gradients
def test_reentrant_checkpoints_are_refused_with_the_cure() -> None:
    """Fails when torch's own error comes through (tried)."""
    model = Fn(
        lambda self, x: checkpoint(lambda z: self.b(torch.tanh(z)), self.a(x), use_reentrant=True),
        a=nn.Linear(8, 8), b=nn.Linear(8, 3),
    )  # fmt: skip
    with pytest.raises(RefusedError, match="use_reentrant=False"):
        run(model)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("clip_norm", 0.0), ("clip_norm", float("nan")), ("clip_norm", True), ("clip_norm", -1.0),
        ("rows_per_unit", 2), ("rows_per_unit", 0), ("micro_batch", 0), ("micro_batch", 2.5),
    ],
)  # fmt: skip
def test_a_bad_argument_is_named(argument: str, value: Any) -> None:
    """Fails when an argument is not checked (tried)."""
    arguments: dict[str, Any] = {"clip_norm": 1.0, argument: value}
    with pytest.raises(InputError, match=argument):
        clipped_sum(nn.Linear(8, 3), smooth_loss, X, targets_for(7, torch.float32), **arguments)


def test_a_model_with_nothing_to_train_is_refused() -> None:
    """Fails when an empty sum is returned (tried)."""
    with pytest.raises(InputError, match="requires_grad"):
        run(nn.Linear(8, 3).requires_grad_(False))
