"""What the probe lets through, losses that use the parameters, and that it leaves no trace."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from engine_helpers import Fn, assert_matches, distance, explicit, length, smooth_loss, targets_for, weight
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from saltflat.engine import clipped_sum
from saltflat.errors import RefusedError

X = torch.randn(7, 5, 8, generator=torch.Generator().manual_seed(0))
IMAGES = torch.randn(7, 4, 6, 6, generator=torch.Generator().manual_seed(1))


def run(model: nn.Module, inputs: Any = X, loss_fn: Any = smooth_loss, **options: Any) -> Any:
    return clipped_sum(model, loss_fn, inputs, targets_for(7, torch.float32), 1.0, **options)


# --- let through --------------------------------------------------------------------------------------


def _autoencoder(self: Any, x: Tensor) -> Tensor:
    z = self.encode(x)
    return self.decode(z + torch.randn_like(z))


def _recurrent(layer: type[nn.Module]) -> nn.Module:
    return Fn(lambda self, x: self.l(x)[0], l=layer(8, 4, 2, dropout=0.5, batch_first=True))


def _with_linear(function: Any, out: int = 3) -> nn.Module:
    return Fn(function, layer=nn.Linear(8, out))


RANDOM = {
    "dropout": lambda: nn.Sequential(nn.Linear(8, 6), nn.Dropout(0.5), nn.Linear(6, 3)),
    "dropout of channels": lambda: nn.Sequential(nn.Conv1d(5, 6, 3), nn.Dropout1d(0.5), nn.Linear(6, 3)),
    "dropout in an LSTM": lambda: _recurrent(nn.LSTM),
    "dropout in a GRU": lambda: _recurrent(nn.GRU),
    "dropout in attention": lambda: Fn(
        lambda self, x: self.l(x, x, x)[0], l=nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)
    ),
    "a transformer": lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True),
    "stochastic depth": lambda: _with_linear(
        lambda self, x: x + self.layer(x) * torch.empty(len(x), 1, 1).bernoulli_(0.5), 8
    ),
    "a variational autoencoder": lambda: Fn(_autoencoder, encode=nn.Linear(8, 3), decode=nn.Linear(3, 8)),
    "noise of its own": lambda: _with_linear(lambda self, x: self.layer(x + torch.rand(x.shape))),
    "draws that nothing stops": lambda: _with_linear(
        lambda self, x: self.layer(x * float(torch.randint(1, 999, ())))
    ),
}


@pytest.mark.parametrize("name", RANDOM)
def test_a_model_that_draws_at_random_is_accepted(name: str) -> None:
    """And stays on the tape. Fails when the probe leaves the dropout inside a layer on (tried)."""
    torch.manual_seed(0)
    found = run(RANDOM[name]())
    assert "example by example" not in found.rules.values()
    assert length(found.grads) > 0


def test_chance_does_not_hide_mixing() -> None:
    """Fails when a model that draws is not compared at all (tried)."""
    model = Fn(lambda self, x: self.layer(x.flip(0)) + 0.1 * torch.randn(len(x), 5, 3), layer=nn.Linear(8, 3))
    with pytest.raises(RefusedError):
        run(model)


def test_a_model_that_does_not_take_a_batch_of_one() -> None:
    """Fails when a last micro-batch, or a whole batch, of one row is passed as it is (tried)."""

    def squeezed(self: Any, x: Tensor) -> Tensor:
        out = self.head(torch.tanh(self.layer(x))).squeeze()
        if out.dim() != 2:
            raise ValueError("I had no batch of one in mind.")
        return out

    torch.manual_seed(0)
    model = Fn(squeezed, layer=nn.Linear(8, 4), head=nn.Linear(4, 3)).double()
    plain = Fn(lambda self, x: self.head(torch.tanh(self.layer(x))), layer=model.layer, head=model.head)
    for rows in (1, 5, 6):
        x, targets = X[:rows, 0].double(), targets_for(rows)
        expected, norms = explicit(plain, smooth_loss, x, targets, 0.3)
        for micro_batch in (None, 1, 5):
            found = clipped_sum(model, smooth_loss, x, targets, 0.3, micro_batch=micro_batch)
            assert distance(found.grads, expected) < 1e-10
            torch.testing.assert_close(found.norms, norms)


def test_outputs_may_hold_more_than_rows() -> None:
    """A scalar beside the scores. Fails when every output must have a row an example (tried)."""

    def net(self: Any, x: Tensor) -> dict[str, Tensor]:
        return {"scores": self.layer(x), "scale": self.scale}

    assert_matches(Fn(net, layer=nn.Linear(8, 3), scale=weight()), X)


@pytest.mark.parametrize("level", [6.0, 6.5, 7.0])
def test_rounding_alone_does_not_refuse_a_model(level: float) -> None:
    """Saturated outputs leave gradients of a few digits, and the last one changes with the size of the batch.

    Fails without the second look in float64 (tried).
    """
    torch.manual_seed(0)

    def saturated(self: Any, x: Tensor) -> Tensor:
        return torch.tanh(0.1 * self.layer(x) + level + 5e-5 * len(x))

    model = Fn(saturated, layer=nn.Linear(8, 200))
    found = clipped_sum(model, lambda o, t: 1e6 * o.sum(1) * t, X[:, 0], torch.ones(7), 1.0)
    assert set(found.rules.values()) == {"linear"}


HELD = [1e30, float("inf"), float("nan"), -1e30]


@pytest.mark.parametrize("held", HELD)
def test_no_row_decides_that_a_model_is_refused(held: float) -> None:
    """The step never raises on data.

    Fails when rows are taken as they are, and what is then not finite counts as a difference (tried).
    """
    torch.manual_seed(0)
    x, targets = X.clone(), targets_for(7, torch.float32)
    x[:3], targets[1] = held, held
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))
    clipped_sum(model, lambda o, t: o.flatten(1).square().sum(1) * t, x, targets, 1.0)


@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize("where", ["inputs", "targets"])
def test_no_row_hides_that_examples_mix(held: float, where: str) -> None:
    """Fails when the probe takes the rows as they are: there is nothing to compare (tried)."""
    torch.manual_seed(0)
    x, targets = X.clone(), targets_for(7, torch.float32)
    (x if where == "inputs" else targets)[:5] = held
    model = Fn(lambda self, x: self.layer(x.flip(0)).square(), layer=nn.Linear(8, 3))
    with pytest.raises(RefusedError):
        clipped_sum(model, smooth_loss, x, targets, 1.0)


def test_autocast_is_accepted() -> None:
    """Weights meet rows in float32; the rest may be short. Fails without the cast of rows (tried)."""

    def short(self: Any, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = torch.relu(self.a(x))
            return self.b(h @ h.mT).float()

    torch.manual_seed(0)
    model = Fn(short, a=nn.Linear(8, 8), b=nn.Linear(5, 3))
    found = run(model)
    assert set(found.rules.values()) == {"linear"}
    plain = Fn(lambda self, x: self.b((h := torch.relu(self.a(x))) @ h.mT), a=model.a, b=model.b)
    close = run(plain)
    assert distance(found.grads, close.grads) < 0.05 * length(close.grads)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's compiler, at its import
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("part", ["whole", "inside", "in place", "inside, in place"])
def test_a_compiled_model_gives_the_same_sum(part: str) -> None:
    """Names follow the wrapper's. Fails when compiled code runs: the tape sees nothing of it (tried)."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3))
    compiled: nn.Module = copy.deepcopy(plain)
    if part == "whole":
        compiled = torch.compile(compiled, backend="eager")
    elif part == "inside":
        compiled[0] = torch.compile(compiled[0], backend="eager")
    else:
        (compiled if part == "in place" else compiled[0]).compile(backend="eager")
    compiled(X)
    found, expected = run(compiled), run(plain)
    names = [name for name, _ in compiled.named_parameters()]
    assert list(found.grads) == list(found.rules) == names
    assert distance(dict(zip(expected.grads, found.grads.values())), expected.grads) < 1e-6
    assert set(found.rules.values()) == {"linear"}


def test_activations_in_place_and_views_of_convolutions() -> None:
    """Fails when the output of a convolution cannot be viewed as rows (tried)."""

    def net(self: Any, x: Tensor) -> Tensor:
        h = F.selu_(self.a(x))
        h = F.silu(self.b(h), inplace=True).view(len(x), -1)
        return self.c(h).add_(1.0).mul_(2.0)

    torch.manual_seed(0)
    model = Fn(net, a=nn.Conv2d(4, 6, 3), b=nn.Conv2d(6, 4, 3), c=nn.Linear(16, 3))
    assert_matches(model, IMAGES)


# --- losses that use the parameters -------------------------------------------------------------------


def test_a_regulariser_is_a_part_of_every_example() -> None:
    """Fails when a weight that is lifted to the rows is shared out among them (tried)."""
    torch.manual_seed(0)
    model = nn.Linear(8, 3).double()

    def loss_fn(outputs: Any, targets: Tensor) -> Tensor:
        return (
            smooth_loss(outputs, targets) + 0.1 * model.weight.square().sum() + 0.1 * model.bias.sin().sum()
        )

    targets = targets_for(7)
    expected, norms = explicit(model, loss_fn, X.double(), targets, 0.6)
    found = clipped_sum(model, loss_fn, X.double(), targets, 0.6, micro_batch=3)
    assert distance(found.grads, expected) < 1e-10
    torch.testing.assert_close(found.norms, norms)


@pytest.mark.parametrize("inside", [True, False])
def test_a_learned_temperature_in_the_loss(inside: bool) -> None:
    """Of the model, or of its own and then left alone. Fails when gradients are accumulated (tried)."""
    torch.manual_seed(0)
    model = nn.Linear(8, 3).double()
    temperature = nn.Parameter(torch.tensor(0.7, dtype=torch.float64))
    if inside:
        model.register_parameter("temperature", temperature)

    def loss_fn(outputs: Any, targets: Tensor) -> Tensor:
        return smooth_loss(outputs / temperature.exp(), targets)

    expected, _ = explicit(model, loss_fn, X.double(), targets_for(7), 0.3)
    found = clipped_sum(model, loss_fn, X.double(), targets_for(7), 0.3)
    assert distance(found.grads, expected) < 1e-10
    assert temperature.grad is None


def test_hooks_on_gradients_are_called_for_each_example() -> None:
    """A mask on a weight's gradient, say. Fails when the tape passes them over: the model is refused (tried)."""
    torch.manual_seed(0)
    model = nn.Linear(8, 3).double()
    model.weight.register_hook(lambda grad: grad * (torch.arange(8) < 4))
    expected, _ = explicit(model, smooth_loss, X.double(), targets_for(7), 0.3)
    found = clipped_sum(model, smooth_loss, X.double(), targets_for(7), 0.3)
    assert distance(found.grads, expected) < 1e-10
    assert float(found.grads["weight"][:, 4:].abs().max()) == 0


# --- no trace ---------------------------------------------------------------------------------------


def test_nothing_is_touched() -> None:
    """Generators, buffers, gradients, training modes, weights.

    Fails when buffers are not put back, or a gradient is accumulated (tried).
    """
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4).eval(), nn.Dropout(0.5), nn.Flatten(),
        spectral_norm(nn.Linear(64, 3)),
    )  # fmt: skip
    parameters = dict(model.named_parameters())
    for p in parameters.values():
        p.grad = torch.ones_like(p)
    marks = [(p, p._version, p.grad, p.grad._version) for p in parameters.values()]
    modes = [module.training for module in model.modules()]
    buffers = {name: b.clone() for name, b in model.named_buffers()}
    weights = {name: p.detach().clone() for name, p in parameters.items()}
    state = torch.get_rng_state()
    from saltflat.engine.probe import examine

    examine(model, smooth_loss, IMAGES, targets_for(7, torch.float32))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(b, buffers[name]) for name, b in model.named_buffers())
    run(model, IMAGES)
    assert all(p._version == v and p.grad is g and g._version == u for p, v, g, u in marks)
    assert all(bool((p.grad == 1).all()) for p in parameters.values())
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(p, weights[name]) for name, p in parameters.items())


def test_the_probe_draws_nothing_from_the_callers_generator() -> None:
    """Draws are the same with and without the probe. Fails when the generator is not put back (tried)."""
    model = _with_linear(lambda self, x: F.dropout(self.layer(x * float(torch.randint(1, 9, ()))), 0.5))
    torch.manual_seed(3)
    checked = run(model, micro_batch=7)
    torch.manual_seed(3)
    unchecked = run(model, micro_batch=7, check=False)
    assert distance(checked.grads, unchecked.grads) == 0


def test_weights_come_back_from_float64_as_they_were() -> None:
    """The same tensors, not equal ones. Fails when they are converted back (tried)."""
    from saltflat.engine.probe import _in_float64

    model = nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4).eval())
    places = [t.data_ptr() for t in (*model.parameters(), *model.buffers())]
    with contextlib.suppress(KeyError), _in_float64(model):
        assert model[0].weight.dtype == torch.float64
        raise KeyError
    assert [t.data_ptr() for t in (*model.parameters(), *model.buffers())] == places
    assert model[0].weight.dtype == torch.float32
