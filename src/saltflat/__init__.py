"""saltflat: train PyTorch models on private data. *Salt* is the noise, *flat* the minimum that survives it.

>>> import saltflat as sf
>>> plan = sf.plans.dp_sgd(epsilon=1.0, delta=1e-5, population=60_000, batch_size=2048, epochs=40)
>>> plan.steps
1172
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from saltflat.heap import one_heap_for_all_threads

if TYPE_CHECKING:
    from saltflat import (
        accounting,
        audit,
        data,
        estimators,
        federated,
        geometry,
        models,
        plans,
        public,
        recipes,
        synthesis,
        theory,
    )
    from saltflat.engine import ClippedSum, clipped_sum
    from saltflat.errors import InputError, PrivacyWarning, RefusedError, SaltflatError
    from saltflat.estimators import PrivateClassifier, PrivateRegressor
    from saltflat.federated.run import federate
    from saltflat.plan import Budget, Phase, Plan
    from saltflat.record.account import Account
    from saltflat.record.verify import verify
    from saltflat.report import report
    from saltflat.training.evaluate_privately import evaluate_privately
    from saltflat.training.fit import fit, steps
    from saltflat.training.gradients import check_gradients
    from saltflat.training.prepare import layer_rules
    from saltflat.training.run import Run
    from saltflat.training.trials import Tuned
    from saltflat.training.tune import tune

__version__ = "0.1.0"

one_heap_for_all_threads()  # before torch starts threads of its own

# Names are loaded when they are first used: torch takes a second to import, and `saltflat --help` needs none.
_HOMES = {
    "Account": "saltflat.record.account",
    "Budget": "saltflat.plan",
    "ClippedSum": "saltflat.engine",
    "InputError": "saltflat.errors",
    "Phase": "saltflat.plan",
    "Plan": "saltflat.plan",
    "PrivacyWarning": "saltflat.errors",
    "PrivateClassifier": "saltflat.estimators",
    "PrivateRegressor": "saltflat.estimators",
    "RefusedError": "saltflat.errors",
    "Run": "saltflat.training.run",
    "SaltflatError": "saltflat.errors",
    "Tuned": "saltflat.training.trials",
    "check_gradients": "saltflat.training.gradients",
    "clipped_sum": "saltflat.engine",
    "evaluate_privately": "saltflat.training.evaluate_privately",
    "federate": "saltflat.federated.run",
    "fit": "saltflat.training.fit",
    "layer_rules": "saltflat.training.prepare",
    "steps": "saltflat.training.fit",
    "tune": "saltflat.training.tune",
    "verify": "saltflat.record.verify",
}
__all__ = [
    "Account",
    "Budget",
    "ClippedSum",
    "InputError",
    "Phase",
    "Plan",
    "PrivacyWarning",
    "PrivateClassifier",
    "PrivateRegressor",
    "RefusedError",
    "Run",
    "SaltflatError",
    "Tuned",
    "__version__",
    "accounting",
    "audit",
    "check_gradients",
    "clipped_sum",
    "data",
    "estimators",
    "evaluate_privately",
    "federate",
    "federated",
    "fit",
    "geometry",
    "layer_rules",
    "models",
    "plans",
    "public",
    "recipes",
    "report",
    "steps",
    "synthesis",
    "theory",
    "tune",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in __all__:  # a chapter, of which report can be called
        return importlib.import_module(f"saltflat.{name}")
    raise AttributeError(f"module 'saltflat' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
