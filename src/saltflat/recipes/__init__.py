"""For a data set and a budget, the best model, features and plan that we know, chosen on other data.

>>> from saltflat import recipes
>>> recipes.names()
['cifar10', 'fashion-mnist', 'mnist']
"""

from saltflat.recipes.features import Features
from saltflat.recipes.known import Recipe, best, features_for, names
from saltflat.recipes.metric import Metric
from saltflat.recipes.patches import Patches

__all__ = ["Features", "Metric", "Patches", "Recipe", "best", "features_for", "names"]
