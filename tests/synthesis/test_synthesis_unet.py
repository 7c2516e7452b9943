"""The networks: how large, and what they depend on. And the augmentation, which must not leak."""

from __future__ import annotations

import math

import pytest
import torch

from saltflat.errors import InputError
from saltflat.synthesis.augment import CHANGES, Augmentation
from saltflat.synthesis.unet import SIZES, UNet, check_image

# full: the reference implementation of EDM has 55,733,891 without classes; ten of them add 10 x 128 + 128
PARAMETERS = {"full": (3, 55_733_891 + 1_408), "small": (1, 688_388), "tiny": (1, 686_657)}


@pytest.mark.parametrize("size", SIZES)
def test_parameter_counts(size: str) -> None:
    channels, expected = PARAMETERS[size]
    with torch.device("meta"):
        network = UNet(SIZES[size], channels, classes=10)
    assert sum(p.numel() for p in network.parameters()) == expected


def test_full_runs_on_the_meta_device() -> None:
    with torch.device("meta"):
        network = UNet(SIZES["full"], 3, classes=10)
        out = network(torch.zeros(2, 3, 32, 32), torch.zeros(2), torch.zeros(2, dtype=torch.long))
    assert out.shape == (2, 3, 32, 32)


@pytest.mark.parametrize(("size", "side"), [("small", 28), ("tiny", 8)])
def test_noise_class_and_changes_are_heard(size: str, side: int) -> None:
    """Fails when any of the three is left out of the embedding (tried)."""
    torch.manual_seed(0)
    network = UNet(SIZES[size], 1, classes=10).eval()
    for parameter in network.parameters():  # layers that start at zero would hide everything
        parameter.data += 0.05 * torch.randn_like(parameter)
    x, none = torch.randn(1, 1, side, side), torch.zeros(1, CHANGES)
    with torch.no_grad():
        plain = network(x, torch.zeros(1), torch.tensor([1]), none)
        assert torch.equal(plain, network(x, torch.zeros(1), torch.tensor([1]), None))
        assert not torch.allclose(plain, network(x, torch.ones(1), torch.tensor([1]), none))
        assert not torch.allclose(plain, network(x, torch.zeros(1), torch.tensor([2]), none))
        assert not torch.allclose(plain, network(x, torch.zeros(1), torch.tensor([1]), none + 0.3))
        batch = network(x.repeat(3, 1, 1, 1), torch.zeros(3), torch.tensor([0, 1, 2]), none.repeat(3, 1))
        torch.testing.assert_close(batch[1:2], plain, rtol=1e-4, atol=1e-5)  # images do not see one another


def test_a_network_begins_as_nothing() -> None:
    """F = 0, so that D begins as the best linear denoiser."""
    network = UNet(SIZES["tiny"], 1, classes=10)
    out = network(torch.randn(4, 1, 8, 8), torch.zeros(4), torch.arange(4))
    assert out.abs().max() < 1e-3


def test_sides_that_cannot_be_halved_are_refused() -> None:
    check_image("small", 28, 28)
    with pytest.raises(InputError, match="multiples of 4"):
        check_image("small", 30, 28)


def test_what_is_not_changed_is_told_as_zero_and_stays_to_the_last_bit() -> None:
    torch.manual_seed(0)
    images = torch.rand(400, 1, 8, 8)
    changed, told = Augmentation(probability=0.1)(images)
    still = (told == 0).all(dim=1)
    assert 0.4 < still.float().mean() < 0.85  # 0.9⁴ = 0.66
    assert torch.equal(changed[still], images[still])
    assert ((changed[~still] - images[~still]).abs().amax(dim=(1, 2, 3)) > 0).float().mean() > 0.95


def test_a_whole_turn_of_flips_and_shifts_is_what_it_says() -> None:
    """Fails when mirror and shift are along the wrong axis (tried)."""
    torch.manual_seed(0)
    images = torch.rand(64, 1, 8, 8)
    still = {"scale": 0.0, "rotate": 0.0, "stretch": 0.0}
    changed, told = Augmentation(probability=0.0, flip_x=True, **still, shift=0.0)(images)
    mirrored = told[:, 0] == 1
    assert 0.2 < mirrored.float().mean() < 0.8
    torch.testing.assert_close(changed[mirrored], images[mirrored].flip(-1))
    blob = torch.zeros(64, 1, 8, 8)
    blob[:, :, 3:5, 3:5] = 1
    torch.manual_seed(0)
    moved, told = Augmentation(probability=1.0, **still, shift=0.05)(blob)
    place = (moved * torch.arange(8.0)).sum(dim=(1, 2, 3)) / moved.sum(dim=(1, 2, 3))
    inside = told[:, 7].abs() < 0.2
    # a share s of the side moves the content by -8 s pixels
    torch.testing.assert_close(place[inside] - 3.5, -8 * told[inside, 7], rtol=0, atol=0.05)


def test_the_papers_augmentation() -> None:
    paper = Augmentation.paper()
    assert (paper.probability, paper.rotate, paper.shift) == (0.12, math.pi, 0.125)
