"""The path under which Opacus has this class."""

from saltflat.compat.opacus.accountants.accountant import PRVAccountant

__all__ = ["PRVAccountant"]
