"""Features of patches: of one length, of one image alone, the same under any light, and as Coates and Ng have them."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from saltflat.recipes.features import Features
from saltflat.recipes.patches import FAINT, Patches, _bank
from saltflat.recipes.rows import LENGTH

SMALL = Patches(filters=8)


@pytest.fixture
def images() -> torch.Tensor:
    return torch.rand(7, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def test_answers_are_those_of_the_filters_written_out(images: torch.Tensor) -> None:
    """Patch by patch, sign by sign. Fails when the contrast is taken over a colour instead of a patch (tried)."""
    bank = _bank(SMALL, 3, 32)
    cut = F.unfold(images, 6).double()
    cut = cut - cut.mean(1, keepdim=True)
    cut = cut / (cut.square().mean(1, keepdim=True) + FAINT).sqrt()
    along = torch.einsum("dk,ndp->nkp", bank[:-1].double(), cut) + bank[-1].double().view(1, -1, 1)
    above, below = (along - 0.25).clamp_min(0), (-along - 0.25).clamp_min(0)
    quarters = [F.adaptive_avg_pool2d(part.unflatten(2, (27, 27)), 2).flatten(2) for part in (above, below)]
    one = torch.stack([quarters[0] - quarters[1], quarters[0] + quarters[1]]).permute(1, 3, 0, 2).flatten(1)
    torch.testing.assert_close(
        SMALL(images), (one / one.norm(dim=1, keepdim=True)).float(), atol=1e-5, rtol=1e-4
    )


def test_a_row_depends_on_one_image_alone_and_has_length_one(images: torch.Tensor) -> None:
    rows = SMALL(images)
    assert rows.shape == (7, 3 * 8 * 2 * 4)
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(7))
    torch.testing.assert_close(SMALL(images[4:5]), rows[4:5])


def test_light_and_contrast_hardly_matter_and_places_do(images: torch.Tensor) -> None:
    rows = SMALL(images)
    assert F.cosine_similarity(SMALL(0.3 + 0.5 * images), rows).min() > 0.999
    # a mirror image has the same patches turned round, in the other quarters
    assert F.cosine_similarity(SMALL(images.flip(3)), rows).max() < 0.999


def test_an_even_image_gives_a_finite_row() -> None:
    assert torch.isfinite(SMALL(torch.full((1, 3, 32, 32), 0.5))).all()


def test_filters_are_the_same_every_time_and_those_of_another_seed_are_others() -> None:
    first = _bank(SMALL, 1, 28)
    _bank.cache_clear()
    assert torch.equal(_bank(SMALL, 1, 28), first)
    assert not torch.equal(_bank(Patches(filters=8, seed=8), 1, 28), first)


def test_beside_wavelets_each_has_half_of_the_length(images: torch.Tensor) -> None:
    """Fails when the two are joined before each has been brought to length one (tried)."""
    joined, plain = Features(patches=SMALL)(images), Features()(images)
    wavelets, answers = joined.split([plain.shape[1], joined.shape[1] - plain.shape[1]], 1)
    for part, alone in ((wavelets, plain), (answers, LENGTH * SMALL(images))):
        torch.testing.assert_close(part, alone / 2**0.5, atol=1e-4, rtol=1e-4)
