"""Layers under Opacus's names: its arguments, its parameters in its order, its checkpoints; torch's results."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from compat_helpers import made_private, rows_for
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from saltflat.compat.opacus import GradSampleModule
from saltflat.compat.opacus.grad_sample.functorch import ft_compute_per_sample_gradient
from saltflat.compat.opacus.grad_sample.linear import compute_linear_grad_sample, compute_linear_norm_sample
from saltflat.compat.opacus.layers import DPGRU, DPLSTM, DPRNN, DPMultiheadAttention, SequenceBias
from saltflat.compat.opacus.utils.packed_sequences import _gen_packed_data, compute_seq_lengths
from saltflat.compat.opacus.utils.per_sample_gradients_utils import check_per_sample_gradients_are_correct
from saltflat.compat.opacus.utils.tensor_utils import unfold2d, unfold3d
from saltflat.errors import InputError, RefusedError

ATTENTIONS: list[dict[str, Any]] = [
    {},
    {"bias": False, "batch_first": True},
    {"add_bias_kv": True, "add_zero_attn": True},
    {"kdim": 3, "vdim": 5},
]


def inputs_of(options: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """Five queries and six keys, for three examples."""
    torch.manual_seed(0)
    sizes = (5, 8), (6, options.get("kdim", 8)), (6, options.get("vdim", 8))
    rows = [torch.randn(3, *size) for size in sizes]
    q, k, v = rows if options.get("batch_first") else [each.transpose(0, 1) for each in rows]
    return q, k, v


@pytest.mark.parametrize("options", ATTENTIONS, ids=str)
def test_attention_is_torchs_with_the_weights_of_torch(options: dict[str, Any]) -> None:
    """Both ways, alone and inside a model. Should fail when two projections are taken for one another."""
    theirs, ours = nn.MultiheadAttention(8, 2, **options), DPMultiheadAttention(8, 2, **options)
    ours.load_state_dict(theirs.state_dict())
    given = inputs_of(options)
    for found, expected in zip(ours(*given), theirs(*given), strict=True):
        torch.testing.assert_close(found, expected)
    assert ours(*given, need_weights=False)[1] is None
    again = nn.MultiheadAttention(8, 2, **options)
    again.load_state_dict(ours.state_dict())
    torch.testing.assert_close(again(*given)[0], theirs(*given)[0])
    nested = nn.ModuleList([DPMultiheadAttention(8, 2, **options)])
    nested.load_state_dict(nn.ModuleList([theirs]).state_dict())
    torch.testing.assert_close(nested[0](*given)[0], theirs(*given)[0])


def test_masks_mean_what_they_mean_in_torch() -> None:
    theirs, ours = nn.MultiheadAttention(8, 2), DPMultiheadAttention(8, 2)
    ours.load_state_dict(theirs.state_dict())
    q, k, v = inputs_of({})
    padding = torch.zeros(3, 6, dtype=torch.bool)
    padding[1, 4:] = True
    causal = torch.ones(5, 6, dtype=torch.bool).triu(1)
    for masks in ({"key_padding_mask": padding}, {"attn_mask": causal}):
        torch.testing.assert_close(ours(q, k, v, **masks)[0], theirs(q, k, v, **masks)[0])


def test_a_sequence_gets_one_more_element() -> None:
    for batch_first in (True, False):
        layer = SequenceBias(4, batch_first)
        x = torch.randn(3, 7, 4)
        longer = layer(x)
        length = 1 if batch_first else 0
        assert longer.shape[length] == x.shape[length] + 1
        last = longer.select(length, -1)
        torch.testing.assert_close(last, layer.bias.expand_as(last))
        assert check_per_sample_gradients_are_correct(x, layer, batch_first=batch_first)


@pytest.mark.parametrize(("ours", "theirs"), [(DPRNN, nn.RNN), (DPGRU, nn.GRU), (DPLSTM, nn.LSTM)])
def test_recurrent_layers_are_torchs_in_the_order_of_opacus(ours: Any, theirs: Any) -> None:
    """Should fail in torch's order: the moments of an optimizer would go to the wrong weights."""
    layer = ours(
        3, 4, 2, True, True, 0.0, True
    )  # Opacus's places: layers, bias, batch_first, dropout, directions
    plain = theirs(3, 4, num_layers=2, batch_first=True, bidirectional=True)
    layer.load_state_dict(plain.state_dict())
    x = torch.randn(5, 6, 3)
    torch.testing.assert_close(layer(x)[0], plain(x)[0])
    state = layer(x)[1]
    torch.testing.assert_close(layer(x, state_init=state)[0], plain(x, state)[0])
    names = [name for name, _ in layer.named_parameters()]
    assert names[:5] == ["weight_ih_l0", "bias_ih_l0", "weight_hh_l0", "bias_hh_l0", "weight_ih_l0_reverse"]
    assert sorted(names) == sorted(name for name, _ in plain.named_parameters())
    if ours is not DPLSTM:
        with pytest.raises(InputError, match="proj_size=2"):
            ours(3, 4, proj_size=2)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["DPLSTM", "DPGRU", "DPRNN", "DPMultiheadAttention"])
def test_parameters_are_those_of_opacus(name: str) -> None:
    """So that an optimizer's state and a list of clip norms fit. Should fail when two change places."""
    opacus = pytest.importorskip("opacus.layers", reason="Opacus is a peer, not a dependency")
    ours: Any = {
        "DPLSTM": DPLSTM,
        "DPGRU": DPGRU,
        "DPRNN": DPRNN,
        "DPMultiheadAttention": DPMultiheadAttention,
    }
    arguments = (
        {"num_layers": 2, "bidirectional": True} if name != "DPMultiheadAttention" else {"add_bias_kv": True}
    )
    a, b = ours[name](8, 2, **arguments), getattr(opacus, name)(8, 2, **arguments)
    a.load_state_dict(b.state_dict())
    for mine, other in zip(a.parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(mine, other, atol=0, rtol=0)
    assert a.state_dict().keys() == b.state_dict().keys()
    inside, theirs = nn.ModuleList([ours[name](8, 2, **arguments)]), nn.ModuleList([b])
    inside.load_state_dict(theirs.state_dict())  # inside a model, the names are others
    for mine, other in zip(inside.parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(mine, other, atol=0, rtol=0)


class Both(nn.Module):
    """Two layers that Opacus replaces."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.attention = nn.Embedding(11, 8), nn.MultiheadAttention(8, 1, batch_first=True)
        self.cell, self.head = nn.LSTM(8, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        return self.head(self.cell(self.attention(x, x, x)[0])[0][:, -1])


@pytest.mark.filterwarnings("ignore")
def test_a_checkpoint_of_opacus_goes_on_with_the_moments_of_adam(tmp_path: Any) -> None:
    """Attention and an LSTM that Opacus's validator replaced. Should fail when moments meet other weights."""
    opacus = pytest.importorskip("opacus", reason="Opacus is a peer, not a dependency")
    import saltflat.compat.opacus as ours

    x, y = rows_for("text", 8)

    def made(library: Any) -> Any:
        return made_private(
            library, "text", poisson_sampling=False, lr=0.01,
            model=lambda: library.PrivacyEngine.get_compatible_module(Both()),
            optimizer=lambda p: torch.optim.Adam(p, lr=0.01, eps=1e-3),  # the bias of keys has no gradient but rounding
        )  # fmt: skip

    def step(one: Any) -> None:
        one.optimizer.zero_grad()
        nn.CrossEntropyLoss()(one.module(x), y).backward()
        one.optimizer.step()

    first, second = made(opacus), made(ours)
    step(first)
    first.engine.save_checkpoint(path=tmp_path / "c.pt", module=first.module, optimizer=first.optimizer)
    second.engine.load_checkpoint(path=tmp_path / "c.pt", module=second.module, optimizer=second.optimizer)
    step(first)
    step(second)
    for (name, p), q in zip(first.module.named_parameters(), second.module.parameters(), strict=True):
        torch.testing.assert_close(q, p, atol=2e-5, rtol=1e-3, msg=lambda m, n=name: f"{n}: {m}")


# --- packed sequences -------------------------------------------------------------------------------


class States(nn.Module):
    """A recurrent layer without its last states."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.cell = DPLSTM(4, 3, batch_first=batch_first)

    def forward(self, x: Any) -> Any:
        return self.cell(x)[0]


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("by_length", [True, False])
def test_packed_sequences_are_examples(batch_first: bool, by_length: bool) -> None:
    """One row a sequence, in the order of the packing, as in Opacus. Should fail when padding counts."""
    torch.manual_seed(3)
    packed = _gen_packed_data(5, 6, 4, batch_first, by_length)
    model = GradSampleModule(States(batch_first), batch_first=batch_first, loss_reduction="sum")
    out = model(packed)
    assert isinstance(out, PackedSequence)
    torch.testing.assert_close(out.data, model._module(packed).data)
    out.data.pow(2).sum().backward()
    rows, lengths = pad_packed_sequence(packed, batch_first=True)
    assert sorted(lengths.tolist(), reverse=True) == compute_seq_lengths(packed.batch_sizes)
    for i, at in enumerate(range(5) if packed.sorted_indices is None else packed.sorted_indices):
        alone = States(True)
        alone.load_state_dict(model._module.state_dict())
        alone(rows[at : at + 1, : lengths[at]]).pow(2).sum().backward()
        for p, q in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(p.grad_sample[i], q.grad, atol=1e-5, rtol=1e-4)


def test_unpacked_and_packed_agree_where_all_are_as_long() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 5, 4)
    grads = []
    torch.manual_seed(1)
    model = GradSampleModule(States(True), loss_reduction="sum")
    for given in (x, pack_padded_sequence(x, torch.full((4,), 5), batch_first=True)):
        model.zero_grad()
        out = model(given)
        (out if isinstance(out, Tensor) else out.data).pow(2).sum().backward()
        grads.append([p.grad_sample.clone() for p in model.parameters()])
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_bags_with_offsets_are_examples(mode: str) -> None:
    """Tokens of all examples in one row, as text loaders collate them. Should fail when a token is an example."""

    class Topics(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.EmbeddingBag(11, 4, mode=mode), nn.Linear(4, 3)

        def forward(self, tokens: Tensor, offsets: Tensor) -> Tensor:
            return self.head(self.table(tokens, offsets))

    torch.manual_seed(0)
    tokens, offsets = torch.randint(0, 11, (9,)), torch.tensor([0, 2, 3, 7])
    model = GradSampleModule(Topics(), loss_reduction="sum")
    out = model(tokens, offsets)
    torch.testing.assert_close(out, model._module(tokens, offsets))
    out.pow(2).sum().backward()
    ends = [*offsets.tolist()[1:], 9]
    for i, (start, end) in enumerate(zip(offsets.tolist(), ends, strict=True)):
        alone = Topics()
        alone.load_state_dict(model._module.state_dict())
        alone(tokens[start:end], torch.tensor([0])).pow(2).sum().backward()
        for p, q in zip(model.parameters(), alone.parameters(), strict=True):
            assert p.grad_sample.shape == (4, *p.shape)
            torch.testing.assert_close(p.grad_sample[i], q.grad, atol=1e-5, rtol=1e-4)


# --- what scripts call themselves -------------------------------------------------------------------


def test_rules_of_single_layers_can_be_called() -> None:
    """Scripts register or call them. They agree with the engine."""
    torch.manual_seed(0)
    layer, x = nn.Linear(3, 2), torch.randn(4, 5, 3)
    model = GradSampleModule(layer, loss_reduction="sum")
    out = model(x)
    backprops = torch.randn_like(out)
    out.backward(backprops)
    expected = {p: p.grad_sample for p in layer.parameters()}
    assert GradSampleModule.GRAD_SAMPLERS[nn.Linear] is compute_linear_grad_sample
    for found in (
        compute_linear_grad_sample(layer, [x], backprops),
        ft_compute_per_sample_gradient(layer, [x], backprops),
    ):
        for p, grads in expected.items():
            torch.testing.assert_close(found[p], grads)
    norms = compute_linear_norm_sample(layer, [x], backprops)
    torch.testing.assert_close(norms[layer.weight], expected[layer.weight].flatten(1).norm(dim=1))
    assert compute_linear_grad_sample(layer, [x[:0]], backprops[:0])[layer.bias].shape == (0, 2)


def test_a_layer_of_ones_own_is_a_function_until_it_is_released() -> None:
    class Own(nn.Linear):
        pass

    model = GradSampleModule(Own(3, 2))
    grads = model._module.ft_compute_sample_grad(
        [p.detach() for p in model.parameters()], torch.ones(4, 3), torch.ones(4, 2)
    )
    torch.testing.assert_close(grads[0], torch.ones(4, 2, 3))
    assert not hasattr(model.to_standard_module(), "ft_compute_sample_grad")


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize(("padding", "shape"), [((1, 2), (3, 4)), ("valid", (3, 4)), ("same", (3, 4))])
def test_windows(padding: Any, shape: tuple[int, int]) -> None:
    x, options = torch.randn(2, 3, 9, 8), {"stride": (1, 1), "dilation": (2, 1)}
    found = unfold2d(x, kernel_size=shape, padding=padding, **options)
    weight = torch.randn(5, 3, *shape)
    expected = nn.functional.conv2d(x, weight, padding=padding, **options)
    torch.testing.assert_close((weight.flatten(1) @ found).view_as(expected), expected, atol=1e-4, rtol=1e-4)
    volume = unfold3d(x.unsqueeze(2), kernel_size=(1, *shape), padding="valid", dilation=(1, 2, 1))
    torch.testing.assert_close(volume, unfold2d(x, kernel_size=shape, padding="valid", **options))


def test_a_batch_in_the_second_dimension_is_named_as_a_cause() -> None:
    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(11, 4)

        def forward(self, tokens: Tensor) -> Tensor:  # time x batch
            return self.table(tokens).sum(0)

    with pytest.raises(RefusedError, match="pass batch_first=False"):
        GradSampleModule(Sums())(torch.randint(0, 11, (6, 9)))
    assert GradSampleModule(Sums(), batch_first=False)(torch.randint(0, 11, (6, 9))).shape == (9, 4)


class WithStates(nn.Module):
    """Classes of a sequence, and the states of its two layers, which have the examples in their second dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTM(4, 3, num_layers=2, batch_first=True), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        out, states = self.cell(x)
        return self.head(out[:, -1]), states


@pytest.mark.parametrize("units", [1, 2, 5])
def test_a_model_may_return_its_states(units: int) -> None:
    """Every example's own gradient, also through the states. Fails when states pass for rows (tried: refused)."""
    torch.manual_seed(0)
    model, x = WithStates().double(), torch.randn(units, 6, 4, dtype=torch.float64)

    def losses(out: Tensor, states: tuple[Tensor, Tensor]) -> Tensor:
        return out.square().sum(1) + states[0].square().sum((0, 2)) + states[1][0].sum(1)

    plain, wrapped = copy.deepcopy(model), GradSampleModule(model, loss_reduction="sum")
    for _ in range(2):  # the second call knows the model
        wrapped.zero_grad(set_to_none=True)
        losses(*wrapped(x)).sum().backward()
        found = {name: p.grad_sample.clone() for name, p in model.named_parameters()}
        for i in range(units):
            wanted = torch.autograd.grad(losses(*plain(x[i : i + 1])).sum(), list(plain.parameters()))
            for name, grad in zip(found, wanted, strict=True):
                torch.testing.assert_close(found[name][i], grad)
