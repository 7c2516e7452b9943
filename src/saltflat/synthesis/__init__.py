"""Images made from public ones: a diffusion model (EDM), its samples, and their quality.

Only public rows may come in. What comes out costs no budget, and says what it was made from.

>>> import torch
>>> from saltflat import data, synthesis
>>> digits = data.load("digits", public_fraction=0.2)
>>> made = synthesis.train(digits.public, synthesis.settings_for("tiny", steps=1, batch_size=2))
>>> made.images(torch.tensor([0, 1, 2]), steps=2).shape
torch.Size([3, 1, 8, 8])
"""

from saltflat.synthesis.augment import Augmentation
from saltflat.synthesis.evaluate import Measures, Quality, evaluate
from saltflat.synthesis.folder import SynthesisFolder
from saltflat.synthesis.guidance import Discriminator, DiscriminatorSettings, train_discriminator
from saltflat.synthesis.model import Synthesizer
from saltflat.synthesis.precondition import (
    Denoiser,
    denoising_loss,
    heun,
    loss_weight,
    noise_schedule,
    scaling,
)
from saltflat.synthesis.sample import read_samples, sample
from saltflat.synthesis.settings import Settings, settings_for
from saltflat.synthesis.train import resume, train
from saltflat.synthesis.unet import SIZES, UNet

__all__ = [
    "SIZES",
    "Augmentation",
    "Denoiser",
    "Discriminator",
    "DiscriminatorSettings",
    "Measures",
    "Quality",
    "Settings",
    "SynthesisFolder",
    "Synthesizer",
    "UNet",
    "denoising_loss",
    "evaluate",
    "heun",
    "loss_weight",
    "noise_schedule",
    "read_samples",
    "resume",
    "sample",
    "scaling",
    "settings_for",
    "train",
    "train_discriminator",
]
