"""Fixed wavelet features: the 2-D scattering transform, batched on the Fourier side.

The definition is that of Bruna and Mallat (2013) with the Morlet filters of kymatio. It is written
here because kymatio 0.3.0 does not import with current SciPy.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from saltflat.errors import InputError, check_count
from saltflat.models.kept import content_key, kept

# Part of every cache key. Raise it whenever the transform's numbers change.
VERSION = 1

# Images that pass through the transform at once: the intermediate maps of this many stay in cache.
IMAGES_AT_ONCE = 16


class Scattering2d(nn.Module):
    """Scattering coefficients of orders 0, 1 and 2: N × C × H × W to N × C·K × H/2^J × W/2^J.

    ``K = 1 + J L + L² J (J - 1) / 2``, 81 for J = 2 and L = 8, in kymatio's order. The module has no
    parameters. Coefficients are stable to translations up to about 2^J pixels and to small
    deformations, and no image's coefficients depend on another image.

    Reference: Bruna and Mallat, Invariant Scattering Convolution Networks, PAMI 2013.

    >>> Scattering2d(28)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 81, 7, 7])
    """

    def __init__(self, image_size: int | tuple[int, int], J: int = 2, L: int = 8) -> None:
        super().__init__()
        check_count("J", J)
        check_count("L", L)
        height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
        check_count("image_size", min(height, width), 2**J + 1, cure=f"Images shrink {2**J} times.")
        self.image_size, self.J, self.L = (height, width), J, L
        sides = self.padded_size = (_padded(height, J), _padded(width, J))
        for level, scale in self._bands():
            bank = torch.stack([_at_level(_morlet(sides, scale, turn, L), level) for turn in range(L)])
            step = 2 ** (scale - level)
            pairs = _aliases(torch.complex(bank, bank), step) / step**2  # the mean over aliases, in advance
            self.register_buffer(f"psi_{level}_{scale}", pairs.float(), persistent=False)
        for level in range(J):
            for axis, side in enumerate(sides):
                smooth = _low_pass_matrix(side, level, J).float()
                self.register_buffer(f"phi_{level}_{axis}", smooth, persistent=False)

    @property
    def maps(self) -> int:
        """K, the number of coefficients a colour at every position."""
        return 1 + self.J * self.L + self.L**2 * self.J * (self.J - 1) // 2

    def forward(self, images: Tensor) -> Tensor:
        if images.dim() != 4 or images.shape[2:] != self.image_size:
            raise InputError(
                "images", str(tuple(images.shape)), f"N × C × {self.image_size[0]} × {self.image_size[1]}",
                problem="has the wrong shape",
            )  # fmt: skip
        _check_floating(images)
        count, colours, height, width = images.shape
        if images.numel() == 0:  # the libraries behind the FFT refuse to transform nothing
            return images.new_empty(count, colours * self.maps, height >> self.J, width >> self.J)
        maps = self._pad(images.to(self.get_buffer("phi_0_0").dtype)).flatten(0, 1)
        coefficients = torch.cat([self._transform(some) for some in torch.split(maps, IMAGES_AT_ONCE)])
        return coefficients.reshape(count, colours * self.maps, *coefficients.shape[-2:])

    def _transform(self, images: Tensor) -> Tensor:
        """Padded images, n × H × W, to coefficients, n × K × H/2^J × W/2^J."""
        spectrum = torch.fft.fft2(images)
        zeroth, first, second = [self._smooth(images, level=0).unsqueeze(1)], [], []
        for scale in range(self.J):
            wavelets = _modulus(self._band(spectrum, 0, scale))
            first.append(self._smooth(wavelets, level=scale))
            if scale + 1 < self.J:
                spectra = torch.fft.fft2(wavelets)
                coarser = [_modulus(self._band(spectra, scale, j)) for j in range(scale + 1, self.J)]
                smooth = [self._smooth(maps, level=j) for j, maps in enumerate(coarser, scale + 1)]
                second.append(torch.cat(smooth, dim=2).flatten(1, 2))
        return torch.cat(zeroth + first + second, dim=1)

    def _bands(self) -> list[tuple[int, int]]:
        """Pairs (level of the input, scale of the wavelet): the image's, then those of every finer scale."""
        finer = [(level, scale) for scale in range(self.J) for level in range(1, scale)]
        return [(0, scale) for scale in range(self.J)] + finer

    def _band(self, spectrum: Tensor, level: int, scale: int) -> Tensor:
        """Convolve with the wavelets of one scale, all angles, and subsample to the level of that scale.

        Subsampling by k is a mean of k × k aliases of the spectrum. Filters are real on the Fourier
        side, so products are taken on pairs (real, imaginary): half the work of complex products.
        """
        step = 1 << (scale - level)
        signals = _aliases(spectrum.unsqueeze(-3), step)
        filters = self.get_buffer(f"psi_{level}_{scale}")
        total = signals[0] * filters[0]
        for signal, filter_ in zip(signals[1:], filters[1:]):
            total.addcmul_(signal, filter_)  # one array re-used: fresh memory costs more than the arithmetic
        height, width = spectrum.shape[-2] // step, spectrum.shape[-1] // step
        subsampled = torch.view_as_complex(total.view(*total.shape[:-1], height, width, 2))
        return torch.fft.ifft2(subsampled)

    def _smooth(self, maps: Tensor, level: int) -> Tensor:
        """Low pass, subsample to 2^J and drop the padding: two matrices, as the Gaussian is separable."""
        rows, columns = self.get_buffer(f"phi_{level}_0"), self.get_buffer(f"phi_{level}_1")
        return rows @ (maps @ columns.T)

    def _pad(self, images: Tensor) -> Tensor:
        """Reflect at the borders, one pixel more at the end where the padding is odd."""
        (height, width), (tall, wide) = self.image_size, self.padded_size
        top, left = (tall - height) // 2, (wide - width) // 2
        return F.pad(images, (left, wide - width - left, top, tall - height - top), mode="reflect")

    def extra_repr(self) -> str:
        return f"image_size={self.image_size}, J={self.J}, L={self.L}"


def scattering_features(
    images: Tensor,
    cache_dir: str | os.PathLike[str] | None = None,
    batch_size: int = 256,
    progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """`Scattering2d` (J = 2, L = 8) of images N × C × H × W, computed once and kept in ``cache_dir``.

    The cache goes by content: the images' bytes, shape and type, and the transform's settings and
    version. A file that cannot be read, or whose numbers have changed, is computed anew. Features of
    private images are as private as the images: cached files are readable by their owner alone.
    ``progress(done, total)`` is called after every batch.

    >>> scattering_features(torch.rand(3, 1, 28, 28)).shape
    torch.Size([3, 81, 7, 7])
    """
    check_count("batch_size", batch_size)
    if images.dim() != 4:
        raise InputError("images", str(tuple(images.shape)), "N × C × H × W", problem="has the wrong shape")
    _check_floating(images)
    transform = Scattering2d((images.shape[2], images.shape[3])).to(images.device)
    if cache_dir is None:
        return _compute(transform, images, batch_size, progress)
    settings = [VERSION, transform.image_size, transform.J, transform.L]
    file = Path(cache_dir) / f"scattering-{content_key(settings, images)}.safetensors"
    features = kept(file, lambda: _compute(transform, images, batch_size, progress))
    return features.to(images.device)


def _check_floating(images: Tensor) -> None:
    if not images.is_floating_point():
        raise InputError(
            "images", str(images.dtype), "floating-point numbers in [0, 1]", problem="has whole numbers",
            cure="Bytes become such numbers by images.float() / 255.",
        )  # fmt: skip


@torch.no_grad()
def _compute(
    transform: Scattering2d, images: Tensor, batch_size: int, progress: Callable[[int, int], None] | None
) -> Tensor:
    count, colours, height, width = images.shape
    small = (height // 2**transform.J, width // 2**transform.J)
    features = torch.empty(count, colours * transform.maps, *small, device=images.device)
    for start in range(0, count, batch_size):
        stop = min(start + batch_size, count)
        features[start:stop] = transform(images[start:stop])
        if progress is not None:
            progress(stop, count)
    return features


def _modulus(z: Tensor) -> Tensor:
    """|z|, and z is used up: written out and in place it takes a third of the time of ``abs``.

    Where gradients are wanted it is ``abs``, whose derivative at 0 is a number.
    """
    if z.requires_grad:
        return z.abs()
    squares = torch.view_as_real(z).square_()
    return (squares[..., 0] + squares[..., 1]).sqrt_()


def _aliases(spectrum: Tensor, step: int) -> Tensor:
    """The step × step tiles of a spectrum, ... × H × W to step² × ... × (HW / step² pairs of reals)."""
    *others, height, width = spectrum.shape
    tiles = torch.view_as_real(spectrum).reshape(*others, step, height // step, step, width // step, 2)
    return tiles.movedim((-5, -3), (0, 1)).flatten(0, 1).flatten(-3)


def _padded(side: int, J: int) -> int:
    """The side with about 2^J pixels around it, a multiple of 2^J so that subsampling comes out even."""
    coarse = 1 << J
    return ((side + coarse) // coarse + 1) * coarse


def _gabor(sides: tuple[int, int], sigma: float, angle: float, frequency: float, slant: float) -> Tensor:
    """A plane wave under an elongated Gaussian, wrapped around the torus; slant 1 is round."""
    # copies from two periods away suffice: no Gaussian here is wide against the padded image
    rows, columns = (torch.arange(-2 * side, 3 * side, dtype=torch.float64) for side in sides)
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    along = y * math.cos(angle) + x * math.sin(angle)
    across = -y * math.sin(angle) + x * math.cos(angle)
    envelope = torch.exp(-(along.square() + (slant * across).square()) / (2 * sigma**2))
    wave = torch.polar(envelope * slant / (2 * math.pi * sigma**2), frequency * along)
    return wave.view(5, sides[0], 5, sides[1]).sum((0, 2))


def _morlet(sides: tuple[int, int], scale: int, turn: int, L: int) -> Tensor:
    """The spectrum of a Morlet wavelet: a Gabor wave less the envelope that makes its mean zero. Real."""
    sigma, frequency, slant = 0.8 * 2**scale, 3 / 4 * math.pi / 2**scale, 4 / L
    angle = (int(L - L / 2 - 1) - turn) * math.pi / L
    wave = _gabor(sides, sigma, angle, frequency, slant)
    envelope = _gabor(sides, sigma, angle, 0.0, slant)
    return torch.fft.fft2(wave - wave.sum() / envelope.sum() * envelope).real


def _at_level(spectrum: Tensor, level: int, axes: tuple[int, ...] = (-2, -1)) -> Tensor:
    """The filter for signals subsampled by 2^level: its low frequencies alone."""
    for axis in axes:
        length = spectrum.shape[axis]
        half = length >> (level + 1)
        positive, negative = spectrum.narrow(axis, 0, half), spectrum.narrow(axis, length - half, half)
        spectrum = torch.cat([positive, negative], axis)
    return spectrum


def _low_pass_matrix(side: int, level: int, J: int) -> Tensor:
    """Along one axis: smooth by a Gaussian, keep every 2^(J - level)-th value, drop the padding's two."""
    sigma = 0.8 * 2 ** (J - 1)
    x = torch.arange(-2 * side, 3 * side, dtype=torch.float64)
    gaussian = torch.exp(-x.square() / (2 * sigma**2)) / math.sqrt(2 * math.pi * sigma**2)
    gaussian = gaussian.view(5, side).sum(0)  # wrapped around the torus
    kernel: Tensor = torch.fft.ifft(_at_level(torch.fft.fft(gaussian), level, axes=(-1,))).real
    kept = torch.arange(0, len(kernel), 1 << (J - level))[1:-1]
    return kernel[(kept[:, None] - torch.arange(len(kernel))) % len(kernel)]
