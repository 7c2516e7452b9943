"""Opacus's interface on saltflat: change the import, and the training script stays.

``from saltflat.compat.opacus import PrivacyEngine`` and, under the names and paths that Opacus 1.6 has,
`ModuleValidator`, `BatchMemoryManager`, `get_noise_multiplier`, `GradSampleModule`, `DPOptimizer`,
`DPDataLoader` and the rest. Opacus itself is not needed. What differs, and why, is in docs/opacus.md.
"""

from saltflat.compat.opacus.accountants.utils import get_noise_multiplier
from saltflat.compat.opacus.data_loader import DPDataLoader
from saltflat.compat.opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
from saltflat.compat.opacus.optimizers import DPOptimizer
from saltflat.compat.opacus.privacy_engine import PrivacyEngine
from saltflat.compat.opacus.utils.batch_memory_manager import BatchMemoryManager
from saltflat.compat.opacus.validators import ModuleValidator

# The version of Opacus whose interface this is.
__version__ = "1.6.0"

__all__ = [
    "BatchMemoryManager",
    "DPDataLoader",
    "DPOptimizer",
    "GradSampleModule",
    "GradSampleModuleFastGradientClipping",
    "ModuleValidator",
    "PrivacyEngine",
    "get_noise_multiplier",
]
