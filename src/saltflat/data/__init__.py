"""Data sets and how they are read: by name, from files of your own, or from tensors you already have.

>>> from saltflat import data
>>> digits = data.load("digits")
>>> len(digits.train), digits.num_classes
(1437, 10)
"""

from saltflat.data.catalogue import names
from saltflat.data.dataset import DataSet
from saltflat.data.fetching import fetch
from saltflat.data.loading import load
from saltflat.data.places import Description, describe, locate
from saltflat.data.source import Examples, as_source
from saltflat.data.split import public_part, public_split

__all__ = [
    "DataSet",
    "Description",
    "Examples",
    "as_source",
    "describe",
    "fetch",
    "load",
    "locate",
    "names",
    "public_part",
    "public_split",
]
