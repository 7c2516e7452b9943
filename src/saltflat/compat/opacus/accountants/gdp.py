"""The path under which Opacus has this class."""

from saltflat.compat.opacus.accountants.accountant import GaussianAccountant

__all__ = ["GaussianAccountant"]
