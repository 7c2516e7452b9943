"""The path under which Opacus has these functions."""

from saltflat.compat.opacus.validators.module_validator import (
    ModuleValidator,
    register_module_fixer,
    register_module_validator,
)

DEFAULT_MODULE_VALIDATOR = ModuleValidator

__all__ = [
    "DEFAULT_MODULE_VALIDATOR",
    "ModuleValidator",
    "register_module_fixer",
    "register_module_validator",
]
