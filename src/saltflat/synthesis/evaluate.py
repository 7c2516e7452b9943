"""How good samples are: for a classifier, beside public images, and whether they are copies of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from saltflat.data import Examples
from saltflat.errors import InputError, check_count
from saltflat.models import scattering_features
from saltflat.synthesis import pictures
from saltflat.synthesis.classifier import COPY, SmallClassifier, accuracy, copies, train_classifier
from saltflat.synthesis.folder import refuse_private
from saltflat.synthesis.quality import class_score, frechet_distance, nearest, precision_and_recall

SPACES = ("classifier", "scattering")
MOST_ROWS = 5_000  # of either set, for measures whose cost grows with the square
COVERED, NOT_COVERED = "public rows", "private test rows: exact numbers, not covered by ε"


@dataclass(frozen=True)
class Measures:
    """What is measured of one set of images beside the public ones."""

    precision: float
    recall: float
    frechet_distance: float
    class_score: float
    copied: float


@dataclass(frozen=True)
class Quality:
    """The answer of `evaluate`.

    ``accuracies`` are those of one small classifier, trained on each set for the same number of steps: "samples" is
    the classification accuracy score (Ravuri and Vinyals 2019). ``scored_on`` says on which rows.
    """

    samples: Measures
    copies: Measures
    accuracies: dict[str, float]
    scored_on: str
    features: str
    reference: str
    counts: dict[str, int]
    pictures: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self) | {"pictures": list(self.pictures)}

    def __str__(self) -> str:
        lines = [
            f"reference: {self.reference}",
            f"features: {self.features}",
            "",
            f"{'':30}{'samples':>10}{'copies':>10}",
        ]
        words = {
            "precision": "precision (faithful)", "recall": "recall (diverse)", "frechet_distance": "Fréchet distance",
            "class_score": "class score", "copied": "nearer than 1/3 to one row",
        }  # fmt: skip
        for key, name in words.items():
            form = "{:>10.1%}" if key in ("precision", "recall", "copied") else "{:>10.3f}"
            values = "".join(form.format(getattr(part, key)) for part in (self.samples, self.copies))
            lines.append(f"{name:30}{values}")
        lines += ["", f"accuracy of a small classifier trained on (scored on {self.scored_on}):"]
        lines += [f"  {name:44}{value:>8.2%}" for name, value in self.accuracies.items()]
        return "\n".join(
            [*lines, *([""] if self.pictures else []), *(f"picture: {p}" for p in self.pictures)]
        )


def evaluate(
    samples: Examples,
    public: Examples,
    *,
    test: Examples | None = None,
    features: str = "classifier",
    k: int = 3,
    classifier_steps: int = 1_000,
    seed: int = 0,
    out: str | Path | None = None,
    announce: Callable[[str], None] | None = None,
) -> Quality:
    """Measure samples beside the public images they were made from, and beside augmented copies of those.

    The copies are as many as the samples: what the same public rows give without a diffusion model.

    Args:
        samples: Images of provenance synthetic; see `read_samples`.
        public: The rows they were made from. Private rows are refused: numbers about them are not covered by ε.
        test: Rows to score classifiers on. Scores on private rows are labelled "not covered by ε". Without it,
            the classifier trained on samples is scored on the public rows, and the others are left out.
        features: The space of precision, recall and Fréchet distance: ``"classifier"``, the last hidden layer of a
            small classifier trained on the public rows, or ``"scattering"``, fixed wavelet features.
        k: Neighbours that make a manifold.
        classifier_steps: Batches of 64 that each classifier is trained on.
        seed: Of classifiers and copies.
        out: A folder for the pictures.
        announce: Called with what is being done.
    """
    refuse_private(public)
    refuse_private(samples, "samples")
    if features not in SPACES:
        raise InputError("features", features, f"one of {', '.join(SPACES)}")
    if samples.inputs.shape[1:] != public.inputs.shape[1:]:
        raise InputError(
            "samples", str(tuple(samples.inputs.shape[1:])), f"images of {tuple(public.inputs.shape[1:])}",
            problem="are of another shape than the public images",
        )  # fmt: skip
    check_count("seed", seed, least=0)
    say = announce or (lambda words: None)
    classes = max(public.num_classes or 0, int(public.targets.max()) + 1)

    def classifier(images: Tensor, labels: Tensor, changed: bool = False) -> SmallClassifier:
        augmentation = COPY if changed else None
        return train_classifier(
            images, labels, classes, steps=classifier_steps, augmentation=augmentation, seed=seed
        )

    say("a classifier on the public rows")
    judge = classifier(public.inputs, public.targets, changed=True)
    made = (samples.inputs, samples.targets)
    copied = copies(public.inputs, public.targets, len(samples), seed)
    space, name = _space(features, judge, public)
    say("precision, recall and distances")
    of_samples, of_copies = (
        _measures(images, public.inputs, judge, space, k, seed) for images in (made[0], copied[0])
    )
    trained_on: dict[str, Callable[[], SmallClassifier]] = {"samples": lambda: classifier(*made)}
    if test is not None:
        trained_on |= {
            "samples, augmented on the way": lambda: classifier(*made, changed=True),
            "as many augmented copies of public rows": lambda: classifier(*copied),
            "public rows, augmented on the way": lambda: judge,
        }
    scored = test if test is not None else public
    accuracies = {}
    for rows, trained in trained_on.items():
        say(f"a classifier on {rows}")
        accuracies[rows] = accuracy(trained(), scored.inputs, scored.targets)
    drawn = () if out is None else _pictures(samples, public, Path(out))
    private = test is not None and test.provenance == "private"
    return Quality(
        samples=of_samples,
        copies=of_copies,
        accuracies=accuracies,
        scored_on=NOT_COVERED if private else COVERED,
        features=name,
        reference=f"{len(public)} public rows of {public.name}",
        counts={"samples": len(samples), "public": len(public), "measured_at_most": MOST_ROWS},
        pictures=drawn,
    )


def _space(features: str, judge: SmallClassifier, public: Examples) -> tuple[Callable[[Tensor], Tensor], str]:
    """The map to features, and its name."""
    if features == "scattering":
        name = "scattering coefficients (J=2, L=8), a mean over places"
        return lambda images: scattering_features(images).mean(dim=(2, 3)), name

    def penultimate(images: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.cat([judge.penultimate(some) for some in images.split(500)])

    size = judge.features.out_features
    name = f"last hidden layer ({size}) of a small classifier trained on {len(public)} public rows"
    return penultimate, name


def _measures(
    images: Tensor,
    public: Tensor,
    judge: SmallClassifier,
    space: Callable[[Tensor], Tensor],
    k: int,
    seed: int,
) -> Measures:
    """All measures of some of the images; as many as public rows for those that depend on the number of rows."""
    images, public = _some(images, MOST_ROWS, seed), _some(public, MOST_ROWS, seed)
    fewer = images[: len(public)]
    reference, found = space(public), space(fewer)
    precision, recall = precision_and_recall(reference, found, k)
    with torch.no_grad():
        probabilities = torch.cat([judge(some).softmax(dim=1) for some in images.split(500)])
    return Measures(
        precision,
        recall,
        frechet_distance(reference, found),
        class_score(probabilities),
        nearest(images, public).copied,
    )


def _some(rows: Tensor, most: int, seed: int) -> Tensor:
    """In an order that has nothing to do with classes, and no more than asked for."""
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    return rows[order[:most]]


def _pictures(samples: Examples, public: Examples, out: Path) -> tuple[str, ...]:
    labels = samples.targets
    first = pictures.grid(samples.inputs, labels, out / "samples.png", title=f"{samples.name}, by class")
    # two of each class; of their neighbours three
    rows = torch.cat([torch.nonzero(labels == label).flatten()[:2] for label in labels.unique()[:10]])
    found = nearest(samples.inputs[rows], public.inputs)
    title = "samples (framed) and their nearest public images, with distances between pixels"
    second = pictures.neighbours(
        samples.inputs[rows], public.inputs[found.rows], found.distances, out / "neighbours.png", title
    )
    return str(first), str(second)
