"""What a model may be refused for; the names are Opacus's."""

from __future__ import annotations


class UnsupportedError(ValueError):
    """Something that cannot be trained privately as it is."""


class UnsupportedModuleError(UnsupportedError):
    """A module that cannot be trained privately as it is."""


class ShouldReplaceModuleError(UnsupportedModuleError):
    """A module with a replacement: `ModuleValidator.fix` makes it."""


class UnsupportableModuleError(UnsupportedModuleError):
    """A module that mixes examples, and has no replacement."""


class NotYetSupportedModuleError(UnsupportedModuleError):
    """A module that nobody has looked at."""


class IllegalModuleConfigurationError(UnsupportedModuleError):
    """A module in a state or mode that does not allow private training."""
