"""The path under which Opacus has these functions."""

from saltflat.compat.opacus.validators.module_validator import (
    register_module_fixer,
    register_module_validator,
)

__all__ = ["register_module_fixer", "register_module_validator"]
