"""What is averaged. A new averaging is one file with an `Averaging`, and one line here."""

from saltflat.plan.averagings.averaging import Averaging as Averaging
from saltflat.plan.averagings.averaging import NoAveraging as NoAveraging
from saltflat.plan.averagings.ema import Ema as Ema
from saltflat.plan.averagings.swa import Swa as Swa

AVERAGINGS = {each.kind: each for each in Averaging.__subclasses__()}
"""By their kind: all that are imported above."""
