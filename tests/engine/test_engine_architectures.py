"""Architectures that people bring, against explicit per-example gradients."""

from __future__ import annotations

import engine_weight_uses  # noqa: F401 (its architectures join the others)
import pytest
import torch
from engine_helpers import assert_matches
from engine_networks import ARCHITECTURES
from engine_sequence_uses import layer_of_positions_with_padding

from saltflat.engine import derived


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_architecture_matches_explicit_gradients(name: str) -> None:
    """By the rules that are listed with it. Fails when a rule is taken out (tried with einsum and addmm)."""
    torch.manual_seed(0)
    build, expected = ARCHITECTURES[name]
    rules = assert_matches(*build(), micro_batches=(None, 3))
    assert set(rules.values()) == expected


@pytest.mark.parametrize("limit", [1, 50])
def test_derived_weights_are_carried_back_in_any_number_of_pieces(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when a piece gets the rows of another (tried)."""
    monkeypatch.setattr(derived, "DIAGONAL_LIMIT", limit)
    torch.manual_seed(0)
    assert_matches(*layer_of_positions_with_padding())
