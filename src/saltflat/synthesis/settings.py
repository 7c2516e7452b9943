"""What a diffusion model is trained with: one value, and good values for each size."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from saltflat.errors import InputError, check_count, check_positive
from saltflat.synthesis.augment import Augmentation
from saltflat.synthesis.unet import size_by_name


@dataclass(frozen=True)
class Settings:
    """How a diffusion model is trained. `settings_for` has good values for each size.

    Args:
        size: ``"tiny"``, ``"small"`` or ``"full"``.
        steps: Batches to train on. Training may go on later with more of them.
        batch_size: Images a batch.
        learning_rate: Of Adam, after it has risen over ``rampup`` images.
        rampup: Images over which the learning rate rises from zero.
        half_life: Images after which an old iterate counts half in the average; at most 5 % of those seen.
        seed: Of everything that is drawn: initial weights, order of rows, noise, augmentation, dropout.
        augmentation: What is done to images, and told to the network.

    >>> Settings(size="tiny").batch_size
    32
    """

    size: str = "small"
    steps: int = 8_000
    batch_size: int = 32
    learning_rate: float = 1.5e-3
    rampup: int = 10_000
    half_life: int = 500_000
    seed: int = 0
    augmentation: Augmentation = field(default_factory=Augmentation)

    def __post_init__(self) -> None:
        size_by_name(self.size)
        for name in ("steps", "batch_size", "half_life"):
            check_count(name, getattr(self, name))
        for name in ("seed", "rampup"):
            check_count(name, getattr(self, name), least=0)
            if getattr(self, name) >= 2**63:
                raise InputError(name, getattr(self, name), f"{name} < 2**63", problem="is too large")
        check_positive("learning_rate", self.learning_rate)

    def as_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Settings:
        """What `as_dict` gave."""
        known = {f.name for f in fields(cls)}
        if set(data) != known:
            raise InputError("settings", sorted(set(data) ^ known), f"the keys {', '.join(sorted(known))}")
        return cls(**{**data, "augmentation": Augmentation(**data["augmentation"])})


_FOR = {
    "tiny": Settings("tiny", steps=3_000),
    "small": Settings("small"),
    # Karras et al. 2022, Table 7: 200 million images in batches of 512, a rise over ten million
    "full": Settings(
        "full", steps=390_625, batch_size=512, learning_rate=1e-3, rampup=10_000_000,
        augmentation=Augmentation.paper(),
    ),
}  # fmt: skip


def settings_for(size: str, **changes: Any) -> Settings:
    """Good settings for a size: the paper's for ``full``, measured ones for CPUs for the others.

    >>> settings_for("full").batch_size, settings_for("tiny", steps=100).steps
    (512, 100)
    """
    size_by_name(size)
    return replace(_FOR[size], **{name: value for name, value in changes.items() if value is not None})
