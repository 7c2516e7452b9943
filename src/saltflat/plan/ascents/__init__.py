"""Where the gradient is taken. A new ascent is one file with an `Ascent`, and one line here."""

from saltflat.plan.ascents.ascent import Ascent as Ascent
from saltflat.plan.ascents.ascent import NoAscent as NoAscent
from saltflat.plan.ascents.fresh_query import FreshQuery as FreshQuery
from saltflat.plan.ascents.own_gradient import OwnGradient as OwnGradient
from saltflat.plan.ascents.previous_release import PreviousRelease as PreviousRelease

ASCENTS = {each.kind: each for each in Ascent.__subclasses__()}
"""By their kind: all that are imported above."""
