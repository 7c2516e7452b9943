"""Accountants by name."""

from __future__ import annotations

from saltflat.compat.opacus.accountants.accountant import (
    GaussianAccountant,
    IAccountant,
    PRVAccountant,
    RDPAccountant,
)

_ACCOUNTANTS: dict[str, type[IAccountant]] = {
    kind.NAME: kind for kind in (RDPAccountant, PRVAccountant, GaussianAccountant)
}


def register_accountant(mechanism: str, accountant: type[IAccountant], force: bool = False) -> None:
    """Add an accountant of one's own. What it computes is its own affair."""
    if mechanism in _ACCOUNTANTS and not force:
        raise ValueError(f"Accountant for mechanism {mechanism} is already registered")
    _ACCOUNTANTS[mechanism] = accountant


def create_accountant(mechanism: str) -> IAccountant:
    """A new accountant of this name."""
    if mechanism not in _ACCOUNTANTS:
        raise ValueError(f"Unexpected accounting mechanism: {mechanism}. Known: {', '.join(_ACCOUNTANTS)}")
    return _ACCOUNTANTS[mechanism]()
