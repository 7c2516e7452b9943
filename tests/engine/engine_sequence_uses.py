"""Ways to use weights along a sequence: tokens and their tables, positions, attention, and states that are kept."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from engine_helpers import Fn, weight
from engine_networks import ROWS, Built, architecture, tokens
from torch import Tensor, nn


@architecture("direct", "linear")
def vision_transformer_tokens() -> Built:
    """A class token repeated, not expanded."""

    def net(self: Any, x: Tensor) -> Tensor:
        x = torch.cat([self.token.repeat(len(x), 1, 1), x], dim=1) + self.position
        return self.head(torch.tanh(x)[:, 0] + x.mean(1))

    return Fn(net, token=weight(1, 1, 8), position=weight(1, 6, 8), head=nn.Linear(8, 3)), torch.randn(
        ROWS, 5, 8
    )


@architecture("embedding", "linear")
def last_token() -> Built:
    """The last token of each row, by two indices."""

    def net(self: Any, t: Tensor, lengths: Tensor) -> Tensor:
        h = torch.tanh(self.body(self.embed(t)))
        return self.head(h[torch.arange(len(t)), lengths - 1])

    return Fn(net, embed=nn.Embedding(10, 8), body=nn.Linear(8, 8), head=nn.Linear(8, 3)), (
        tokens(ROWS, 6),
        torch.randint(1, 7, (ROWS,)),
    )


@architecture("embedding")
def table_by_index() -> Built:
    return Fn(
        lambda self, t: self.table[t] * self.other.index_select(0, t.flatten()).view(*t.shape, 3),
        table=weight(10, 3),
        other=weight(10, 3),
    ), tokens(ROWS, 4)


@architecture("example by example")
def packed_sequences() -> Built:
    def net(self: Any, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.head(self.lstm(packed)[1][0][-1])

    return Fn(net, lstm=nn.LSTM(8, 4, batch_first=True), head=nn.Linear(4, 3)), (
        torch.randn(ROWS, 6, 8),
        torch.randint(1, 7, (ROWS,)),
    )


@architecture("linear", "torch.func on scaled_dot_product_attention")
def attention_with_learned_bias() -> Built:
    def net(self: Any, x: Tensor) -> Tensor:
        q, k, v = (part.unsqueeze(1) for part in self.qkv(x).chunk(3, dim=-1))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias)

    return Fn(net, qkv=nn.Linear(8, 24), bias=weight(1, 5, 5)), torch.randn(ROWS, 5, 8)


@architecture("linear", "direct (derived weight)")
def state_space() -> Built:
    """A diagonal recurrence with a learned decay."""

    def net(self: Any, x: Tensor) -> Tensor:
        decay, drive = torch.sigmoid(self.decay), self.inward(x)
        state, states = torch.zeros_like(drive[:, 0]), []
        for step in drive.unbind(1):
            state = decay * state + (1 - decay) * step
            states.append(state)
        return self.outward(torch.stack(states, dim=1))

    return Fn(net, decay=weight(6), inward=nn.Linear(8, 6), outward=nn.Linear(6, 3)), torch.randn(ROWS, 5, 8)


@architecture("attention", "attention (derived weight)", "layer norm", "linear")
def transformer_decoder() -> Built:
    def net(self: Any, x: Tensor, memory: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(5).to(x)
        return self.layer(x, memory, tgt_mask=mask, tgt_is_causal=True)

    layer = nn.TransformerDecoderLayer(8, 2, 16, 0.0, batch_first=True, norm_first=True)
    return Fn(net, layer=layer), (torch.randn(ROWS, 5, 8), torch.randn(ROWS, 4, 8))


@architecture("attention", "attention (derived weight)", "direct (derived weight) + direct")
def induced_set_attention() -> Built:
    def net(self: Any, x: Tensor) -> Tensor:
        queries = self.queries.expand(len(x), -1, -1)
        induced = self.inward(queries, x, x)[0] + queries
        return self.outward(x, induced, induced)[0]

    def layer() -> nn.Module:
        return nn.MultiheadAttention(8, 2, batch_first=True)

    return Fn(net, inward=layer(), outward=layer(), queries=weight(1, 3, 8)), torch.randn(ROWS, 5, 8)


@architecture("direct", "linear")
def conditional_random_field() -> Built:
    def net(self: Any, x: Tensor) -> Tensor:
        emissions = self.emit(x)
        score = emissions[:, 0]
        for emission in emissions[:, 1:].unbind(1):
            score = torch.logsumexp(score.unsqueeze(2) + self.transitions, dim=1) + emission
        return score - score.mean(1, keepdim=True)

    return Fn(net, emit=nn.Linear(8, 4), transitions=weight(4, 4)), torch.randn(ROWS, 5, 8)


@architecture("embedding")
def vector_quantiser() -> Built:
    def net(self: Any, x: Tensor) -> Tensor:
        nearest = torch.cdist(x, self.codes.detach()).argmin(2)
        return (self.codes[nearest] - x) ** 2

    return Fn(net, codes=weight(6, 8)), torch.randn(ROWS, 5, 8)


@architecture("direct (derived weight)", "embedding")
def positions_made_like_the_input() -> Built:
    """``type_as`` takes the type of the tokens, not their rows: 30 positions are not 30 rows."""

    def net(self: Any, t: Tensor) -> Tensor:
        return self.embed(t) + self.position(torch.arange(t.shape[1]).type_as(t))

    return Fn(net, embed=nn.Embedding(10, 4), position=nn.Embedding(40, 4)), tokens(ROWS, 30)


@architecture("embedding")
def positions_repeated() -> Built:
    """The same positions for every row: a weight of the batch's size, of which a row touches its own part."""

    def net(self: Any, t: Tensor) -> Tensor:
        return self.embed(t) * self.position(torch.arange(t.shape[1]).repeat(len(t), 1))

    return Fn(net, embed=nn.Embedding(10, 4), position=nn.Embedding(8, 4)), tokens(ROWS, 5)


@architecture("example by example")
def mask_token_written_in() -> Built:
    def net(self: Any, x: Tensor) -> Tensor:
        h = self.layer(x).clone()
        h[x[..., 0] > 0] = self.token
        return h

    return Fn(net, layer=nn.Linear(8, 8), token=weight(8)), torch.randn(ROWS, 5, 8)


@architecture("lstm", "linear")
def inputs_within_inputs() -> Built:
    """A sequence with the state to start from."""

    def net(self: Any, x: Tensor, state: tuple[Tensor, Tensor]) -> Tensor:
        turned = tuple(s.transpose(0, 1).contiguous() for s in state)
        return self.head(self.lstm(x, turned)[0])

    state = torch.randn(ROWS, 1, 4), torch.randn(ROWS, 1, 4)
    return Fn(net, lstm=nn.LSTM(8, 4, batch_first=True), head=nn.Linear(4, 3)), (
        torch.randn(ROWS, 5, 8),
        state,
    )


@architecture("embedding", "linear")
def layer_of_positions() -> Built:
    """The same positions for every row, through the layer itself, which names all of its settings."""

    def net(self: Any, x: Tensor) -> Tensor:
        places = torch.arange(5).expand(len(x), -1)
        return self.head(torch.tanh(x + self.positions(places)).flatten(1))

    return Fn(net, positions=nn.Embedding(6, 4), head=nn.Linear(20, 3)), torch.randn(ROWS, 5, 4)


@architecture("direct (derived weight)", "linear")
def layer_of_positions_with_padding() -> Built:
    """A padding index of zero: row 0 of the table gets no gradient."""

    def net(self: Any, x: Tensor) -> Tensor:
        places = torch.arange(5).expand(len(x), -1)
        return self.head(torch.tanh(x + F.embedding(places, self.table, padding_idx=0)).flatten(1))

    return Fn(net, table=weight(6, 4), head=nn.Linear(20, 3)), torch.randn(ROWS, 5, 4)
