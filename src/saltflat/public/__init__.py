"""Training with public data: scenarios, warm-up, and the whole recipe. Public rows cost no budget.

>>> from saltflat import data, public
>>> digits = data.load("digits", public_fraction=0.2)
>>> digits.public.provenance, digits.train.provenance
('public', 'private')
"""

from saltflat.data.shared_rows import apart, declared, joined
from saltflat.data.split import public_split
from saltflat.public.own_rows import read_public, read_samples
from saltflat.public.recipe import Recipe, recipe
from saltflat.public.scenarios import SCENARIOS, Scenario, train
from saltflat.public.warm_up import WarmedUp, WarmUp, warm_up

__all__ = [
    "SCENARIOS",
    "Recipe",
    "Scenario",
    "WarmUp",
    "WarmedUp",
    "apart",
    "declared",
    "joined",
    "public_split",
    "read_public",
    "read_samples",
    "recipe",
    "train",
    "warm_up",
]
