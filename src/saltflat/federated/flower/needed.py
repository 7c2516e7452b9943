"""Whether Flower is there."""

from __future__ import annotations

from importlib.util import find_spec

from saltflat.errors import MissingDependencyError


def is_installed() -> bool:
    """Whether the package flwr can be imported."""
    return find_spec("flwr") is not None


def check_installed() -> None:
    """Say what to install where Flower is missing."""
    if not is_installed():
        raise MissingDependencyError("flwr", "rounds over a Flower network", "federated")
