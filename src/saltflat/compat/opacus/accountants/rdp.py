"""The path under which Opacus has this class."""

from saltflat.compat.opacus.accountants.accountant import RDPAccountant

__all__ = ["RDPAccountant"]
