"""The engine beside Opacus, side by side in one process."""

from __future__ import annotations

import pytest

from saltflat.bench.engines import compare


@pytest.mark.slow
@pytest.mark.alone
def test_a_private_step_is_at_least_as_fast_as_the_fastest_opacus_mode() -> None:
    """Rounds taking turns, so that a busy machine slows all alike. Measured at more than twice as fast."""
    assert compare("cnn-selu", examples=64, rounds=3)["ratios"]["opacus"]["median"] >= 1
