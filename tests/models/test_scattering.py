"""The scattering transform against a slow one, against kymatio's numbers, and by its laws."""

from __future__ import annotations

import math
import os
import stat

import numpy as np
import pytest
import torch

from saltflat.errors import InputError
from saltflat.models import Scattering2d, scattering, scattering_features


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def transform():
    return Scattering2d(28)


# -- a reference that shares nothing with the code under test: no FFT, full resolution, then slices ----


def convolve(signal, kernel):
    """Circular, term by term."""
    total = np.zeros(signal.shape, complex)
    for shift in np.ndindex(kernel.shape):
        total += kernel[shift] * np.roll(signal, shift, axis=(0, 1))
    return total


def gabor(side, sigma, angle, frequency, slant):
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    curvature = turn @ np.diag([1, slant**2]) @ turn.T / (2 * sigma**2)
    wave = np.zeros((side, side), complex)
    for y0 in range(-2, 3):
        for x0 in range(-2, 3):
            y, x = np.mgrid[y0 * side : (y0 + 1) * side, x0 * side : (x0 + 1) * side]
            quadratic = curvature[0, 0] * y * y + 2 * curvature[0, 1] * y * x + curvature[1, 1] * x * x
            wave += np.exp(-quadratic + 1j * frequency * (y * np.cos(angle) + x * np.sin(angle)))
    return wave * slant / (2 * np.pi * sigma**2)


def morlet(side, scale, turn):
    arguments = (0.8 * 2**scale, (3 - turn) * np.pi / 8)
    wave = gabor(side, *arguments, 0.75 * np.pi / 2**scale, 0.5)
    envelope = gabor(side, *arguments, 0, 0.5)
    return wave - wave.sum() / envelope.sum() * envelope


def half_resolution(kernel):
    """Keep the lower half of the frequencies, by explicit Fourier matrices."""
    side = len(kernel)
    fourier = np.exp(-2j * np.pi * np.outer(np.arange(side), np.arange(side)) / side)
    low = [*range(side // 4), *range(side - side // 4, side)]
    spectrum = (fourier @ kernel @ fourier.T)[np.ix_(low, low)]
    back = np.exp(2j * np.pi * np.outer(np.arange(side // 2), np.arange(side // 2)) / (side // 2)) / (
        side // 2
    )
    return (back @ spectrum @ back.T).real


def slow_scattering(image):
    """J = 2, L = 8, of one image whose side is a multiple of four."""
    padded = np.pad(image, 4, mode="reflect")
    side = len(padded)
    phi = gabor(side, 1.6, 0, 0, 1).real
    phi_half = half_resolution(phi)

    def smooth(signal, at_half):
        low, step = (phi_half, 2) if at_half else (phi, 4)
        return convolve(signal, low).real[::step, ::step][1:-1, 1:-1]

    fine = [abs(convolve(padded, morlet(side, 0, turn))) for turn in range(8)]
    coarse = [morlet(side, 1, turn) for turn in range(8)]
    first = [smooth(wavelet, False) for wavelet in fine]
    first += [smooth(abs(convolve(padded, wavelet))[::2, ::2], True) for wavelet in coarse]
    second = [smooth(abs(convolve(signal, wavelet))[::2, ::2], True) for signal in fine for wavelet in coarse]
    return np.stack([smooth(padded, False), *first, *second])


def test_agrees_with_the_slow_transform():
    """Fails with another order of angles, a shifted grid, or zero padding (tried)."""
    image = np.random.default_rng(0).random((12, 12))
    ours = Scattering2d(12).double()(torch.from_numpy(image)[None, None])[0]
    slow = slow_scattering(image)
    assert ours.shape == slow.shape == (81, 3, 3)
    for ours_one, slow_one in zip(ours.numpy(), slow):
        assert np.allclose(ours_one, slow_one, rtol=2e-6, atol=1e-8)  # filters are kept in single precision


# Three positions of some maps of the image below, by kymatio 0.3.0.
KYMATIO = {
    0: (0.712982, 0.294233, 0.439296),
    1: (0.0311592, 0.0398504, 0.0249705),
    4: (0.00688544, 0.0486472, 0.114726),
    8: (0.0416658, 0.0177934, 0.00637209),
    9: (0.0461225, 0.0504063, 0.00844305),
    14: (0.0237845, 0.00446352, 0.0174851),
    16: (0.0596191, 0.0162273, 0.0061646),
    17: (0.00163688, 0.0010627, 0.000378273),
    30: (0.00155185, 0.00122334, 0.00196974),
    52: (0.00144351, 0.00145509, 0.00489237),
    80: (0.00708132, 0.000147783, 0.000440337),
}


def test_agrees_with_kymatio(transform):
    """To 2e-4: kymatio takes 3.1415 for pi in each of up to three filters."""
    r = torch.arange(28.0)
    image = 0.5 + 0.5 * torch.sin(r[:, None] ** 2 / 40 + r[None, :] / 3)
    maps = transform(image[None, None])[0]
    for index, numbers in KYMATIO.items():
        ours = torch.stack([maps[index, 0, 0], maps[index, 3, 5], maps[index, 6, 2]])
        assert torch.allclose(ours, torch.tensor(numbers), rtol=2e-4, atol=1e-7), index


# -- laws ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "J", "L", "shape"),
    [
        (28, 2, 8, (81, 7, 7)),
        (32, 2, 8, (81, 8, 8)),
        (30, 2, 8, (81, 7, 7)),
        (5, 2, 8, (81, 1, 1)),
        (16, 1, 4, (5, 8, 8)),
        (24, 3, 6, (1 + 18 + 108, 3, 3)),
        ((16, 28), 2, 8, (81, 4, 7)),
    ],
)
def test_shapes(size, J, L, shape):
    height, width = (size, size) if isinstance(size, int) else size
    maps = Scattering2d(size, J, L)(torch.rand(2, 3, height, width))
    assert maps.shape == (2, 3 * shape[0], *shape[1:])
    assert maps.isfinite().all()


def test_colours_are_transformed_one_by_one(transform):
    images = torch.rand(2, 3, 28, 28)
    alone = [transform(images[:, c : c + 1]) for c in range(3)]
    assert torch.allclose(transform(images), torch.cat(alone, dim=1), atol=1e-6)


def test_no_image_depends_on_another(transform):
    images = torch.rand(40, 1, 28, 28)
    changed = images.clone()
    changed[0] = 7.0
    before, after = transform(images), transform(changed)
    assert torch.equal(before[1:], after[1:])
    assert not torch.equal(before[0], after[0])
    assert torch.allclose(transform(images[33:34]), before[33:34], atol=1e-6)


def test_a_constant_image_has_its_mean_and_no_waves(transform):
    maps = transform(torch.full((1, 1, 28, 28), 0.6))
    assert torch.allclose(maps[:, 0], torch.tensor(0.6), atol=1e-5)
    assert maps[:, 1:].abs().max() < 1e-6


def test_brightness_scales_and_does_not_bend(transform):
    images = torch.rand(2, 1, 28, 28)
    assert torch.allclose(transform(images * 3), transform(images) * 3, rtol=1e-4, atol=1e-6)


def test_waves_do_not_see_a_shift_of_brightness(transform):
    images = torch.rand(2, 1, 28, 28)
    brighter, plain = transform(images + 2), transform(images)
    assert torch.allclose(brighter[:, 1:], plain[:, 1:], atol=1e-5)
    assert torch.allclose(brighter[:, 0], plain[:, 0] + 2, atol=1e-5)


def test_a_transposed_image_has_transposed_maps_at_mirrored_angles(transform):
    """Exact: an angle of θ becomes one of π/2 - θ, which is the same wave as π + π/2 - θ."""
    images = torch.rand(2, 1, 28, 28)
    maps, turned = transform(images), transform(images.mT)
    mirror = [(2 - turn) % 8 for turn in range(8)]
    fine = maps[:, 1:9].mT[:, mirror]
    assert torch.allclose(turned[:, 1:9], fine, atol=1e-6)
    second = maps[:, 17:].reshape(2, 8, 8, 7, 7).mT[:, mirror][:, :, mirror]
    assert torch.allclose(turned[:, 17:].reshape(2, 8, 8, 7, 7), second, atol=1e-6)


def test_small_shifts_change_features_less_than_pixels(transform):
    square = torch.zeros(1, 1, 28, 28)
    square[..., 8:18, 10:20] = 1
    distances = []
    for shift in (1, 2, 4):
        shifted = square.roll(shift, dims=-1)
        in_pixels = (shifted - square).norm() / square.norm()
        in_features = (transform(shifted) - transform(square)).norm() / transform(square).norm()
        assert in_features < 0.85 * in_pixels
        distances.append(in_features.item())
    assert distances == sorted(distances)


def test_the_filters_cover_the_frequencies_without_amplifying_any():
    """The Littlewood-Paley sum: one at frequency zero, at most one elsewhere. So energy never grows."""
    sides = (36, 36)
    total = torch.fft.fft2(scattering._gabor(sides, 1.6, 0.0, 0.0, 1.0)).real.square()
    for scale in range(2):
        for turn in range(8):
            power = scattering._morlet(sides, scale, turn, 8).square()
            total = total + (power + power.flip(0, 1).roll((1, 1), (0, 1))) / 2
    assert abs(total[0, 0].item() - 1) < 1e-6
    assert total.max() < 1 + 1e-6
    assert total.min() > 0.1


def test_distances_never_grow(transform):
    """Padding repeats at most a border of pixels, and every map is sampled at one position in sixteen."""
    left, right = torch.rand(8, 1, 28, 28), torch.rand(8, 1, 28, 28)
    pixels = (left - right).flatten(1).norm(dim=1)
    assert ((transform(left) - transform(right)).flatten(1).norm(dim=1) < pixels).all()


@pytest.mark.parametrize("turn", range(8))
def test_a_wavelet_is_a_gaussian_around_its_frequency(turn):
    """By Poisson's sum, the spectrum of a wrapped Gabor wave is a wrapped Gaussian: a second derivation."""
    side, sigma, slant, frequency = 36, 1.6, 0.5, 0.375 * math.pi
    angle = (3 - turn) * math.pi / 8
    grid = 2 * np.pi * np.fft.fftfreq(side)

    def gaussian(centre):
        total = np.zeros((side, side))
        for y0 in range(-2, 3):
            for x0 in range(-2, 3):
                y, x = np.meshgrid(grid + 2 * np.pi * y0, grid + 2 * np.pi * x0, indexing="ij")
                along = y * np.cos(angle) + x * np.sin(angle) - centre
                across = -y * np.sin(angle) + x * np.cos(angle)
                total += np.exp(-(along**2 + (across / slant) ** 2) * sigma**2 / 2)
        return total

    wave, envelope = gaussian(frequency), gaussian(0)
    expected = wave - wave[0, 0] / envelope[0, 0] * envelope
    assert np.allclose(scattering._morlet((side, side), 1, turn, 8).numpy(), expected, atol=1e-9)


def test_black_images_have_finite_gradients(transform):
    """Fails when the modulus is a square root of squares (tried)."""
    images = torch.zeros(1, 1, 28, 28, requires_grad=True)
    transform(images).sum().backward()
    assert images.grad.isfinite().all()


def test_gradients_change_no_number(transform):
    images = torch.rand(2, 1, 28, 28)
    assert torch.allclose(transform(images.clone().requires_grad_()), transform(images), atol=1e-6)


def test_the_transform_has_no_weights(transform):
    assert list(transform.parameters()) == []
    assert transform.state_dict() == {}


def test_bad_images_are_refused(transform):
    with pytest.raises(InputError, match="wrong shape"):
        transform(torch.rand(1, 1, 32, 32))
    with pytest.raises(InputError, match="255"):
        transform(torch.zeros(1, 1, 28, 28, dtype=torch.uint8))
    with pytest.raises(InputError, match="image_size=4"):
        Scattering2d(4)
    with pytest.raises(InputError, match="J=0"):
        Scattering2d(28, J=0)


# -- features and their cache --------------------------------------------------------------------------


def files(folder):
    return sorted(folder.iterdir()) if folder.exists() else []


@pytest.fixture
def counted(monkeypatch):
    """How many times features were really computed."""
    calls, compute = [], scattering._compute

    def counting(*arguments):
        calls.append(1)
        return compute(*arguments)

    monkeypatch.setattr(scattering, "_compute", counting)
    return calls


def test_batches_change_nothing_and_progress_is_told(transform):
    images, seen = torch.rand(10, 1, 28, 28), []
    features = scattering_features(
        images, batch_size=4, progress=lambda done, total: seen.append((done, total))
    )
    assert seen == [(4, 10), (8, 10), (10, 10)]
    assert torch.allclose(features, transform(images), atol=1e-6)
    assert not features.requires_grad


def test_features_are_computed_once(tmp_path, counted):
    images = torch.rand(3, 3, 32, 32)
    first = scattering_features(images, tmp_path / "new" / "folder")
    second = scattering_features(images.clone(), tmp_path / "new" / "folder", batch_size=1)
    assert torch.equal(first, second)
    assert first.shape == (3, 243, 8, 8)
    assert len(counted) == 1


def test_the_key_is_the_content_the_shape_the_type_and_the_version(tmp_path, counted, monkeypatch):
    images = torch.rand(2, 1, 28, 28)
    other = images.clone()
    other[1, 0, 27, 27] += 1e-3
    half = images.half()
    same_bytes = half.view(torch.bfloat16)
    variants = [images, other, images.flip(0), images.reshape(1, 2, 28, 28), half, same_bytes]
    for variant in variants:
        scattering_features(variant, tmp_path)
    monkeypatch.setattr(scattering, "VERSION", scattering.VERSION + 1)
    scattering_features(images, tmp_path)
    assert len(files(tmp_path)) == len(counted) == len(variants) + 1


def test_strides_are_not_content(tmp_path, counted):
    images = torch.rand(2, 3, 28, 28)
    first = scattering_features(images, tmp_path)
    second = scattering_features(images.contiguous(memory_format=torch.channels_last), tmp_path)
    assert torch.equal(first, second)
    assert len(counted) == 1


def flip_one_byte(data: bytes) -> bytes:
    return data[:-100] + bytes([data[-100] ^ 1]) + data[-99:]


@pytest.mark.parametrize(
    "damage",
    [lambda data: b"", lambda data: b"not a tensor", lambda data: data[:-1000], flip_one_byte],
    ids=["empty", "garbage", "truncated", "one byte"],
)
def test_a_damaged_file_is_computed_anew_and_mended(tmp_path, counted, damage):
    """One flipped byte is found too. Fails without the digest of the numbers (tried)."""
    images = torch.rand(2, 1, 28, 28)
    whole = scattering_features(images, tmp_path)
    (file,) = files(tmp_path)
    whole = whole.clone()
    file.write_bytes(damage(file.read_bytes()))
    assert torch.equal(scattering_features(images, tmp_path), whole)
    assert len(counted) == 2
    assert torch.equal(scattering_features(images, tmp_path), whole)
    assert len(counted) == 2


def test_a_failed_write_leaves_nothing_behind(tmp_path, monkeypatch):
    def full_disk(*_, **__):
        raise OSError("no space left on device")

    monkeypatch.setattr("saltflat.models.kept.save_file", full_disk)
    with pytest.raises(OSError, match="no space"):
        scattering_features(torch.rand(1, 1, 28, 28), tmp_path)
    assert files(tmp_path) == []


@pytest.mark.skipif(os.name != "posix", reason="permissions are those of POSIX")
def test_cached_features_are_their_owners_alone(tmp_path):
    scattering_features(torch.rand(1, 1, 28, 28), tmp_path)
    (file,) = files(tmp_path)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_no_images_give_no_features(tmp_path):
    assert scattering_features(torch.rand(0, 1, 28, 28)).shape == (0, 81, 7, 7)
    assert scattering_features(torch.rand(0, 1, 28, 28), tmp_path).shape == (0, 81, 7, 7)
    assert Scattering2d(28)(torch.rand(0, 1, 28, 28)).shape == (0, 81, 7, 7)


def test_features_refuse_what_is_not_images():
    with pytest.raises(InputError, match="N × C × H × W"):
        scattering_features(torch.rand(2, 28, 28))
    with pytest.raises(InputError, match="255"):
        scattering_features(torch.zeros(2, 1, 28, 28, dtype=torch.uint8))
    with pytest.raises(InputError, match="batch_size=0"):
        scattering_features(torch.rand(2, 1, 28, 28), batch_size=0)
