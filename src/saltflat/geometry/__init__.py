"""How flat a minimum is: spectrum of the Hessian, landscape, wideness, gradients, and all of it during training.

Exact numbers about rows: on public or test data unless asked otherwise, and never covered by ε on private rows.

>>> import saltflat as sf
>>> loss = sf.geometry.Loss(sf.models.build("mlp"), sf.data.load("digits").test, rows=64)
>>> bool(sf.geometry.eigenvalues(loss).values[0] > 0)
True
"""

from saltflat.geometry.during import Flatness
from saltflat.geometry.gradients import Cosines, GradientNorms, gradient_norms, variance_of_last
from saltflat.geometry.lanczos import Density, Eigenpairs, Estimate
from saltflat.geometry.landscape import (
    Landscape,
    Wideness,
    filter_normalised,
    interpolation,
    landscape,
    wideness,
    wideness_gain,
)
from saltflat.geometry.loss import Loss
from saltflat.geometry.measure import Settings, compare, measure
from saltflat.geometry.rows import Rows, rows_of
from saltflat.geometry.spectrum import eigenvalues, hessian_density, hessian_trace

__all__ = [
    "Cosines",
    "Density",
    "Eigenpairs",
    "Estimate",
    "Flatness",
    "GradientNorms",
    "Landscape",
    "Loss",
    "Rows",
    "Settings",
    "Wideness",
    "compare",
    "eigenvalues",
    "filter_normalised",
    "gradient_norms",
    "hessian_density",
    "hessian_trace",
    "interpolation",
    "landscape",
    "measure",
    "rows_of",
    "variance_of_last",
    "wideness",
    "wideness_gain",
]
