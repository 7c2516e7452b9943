"""Models that cannot be trained privately as they are: found, and fixed."""

from saltflat.compat.opacus.validators.module_validator import (
    ModuleValidator,
    register_module_fixer,
    register_module_validator,
)

__all__ = ["ModuleValidator", "register_module_fixer", "register_module_validator"]
