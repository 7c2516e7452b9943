"""Accountants and calibration."""

from saltflat.compat.opacus.accountants import registry
from saltflat.compat.opacus.accountants.accountant import (
    GaussianAccountant,
    IAccountant,
    PRVAccountant,
    RDPAccountant,
)
from saltflat.compat.opacus.accountants.registry import create_accountant, register_accountant

__all__ = [
    "GaussianAccountant",
    "IAccountant",
    "PRVAccountant",
    "RDPAccountant",
    "create_accountant",
    "register_accountant",
    "registry",
]
