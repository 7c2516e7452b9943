"""A diffusion model on the public tenth of a data set: train, go on, sample, measure. A real one takes more steps."""

from pathlib import Path

import numpy as np

import saltflat as sf
from saltflat import synthesis

digits = sf.data.load("digits").train
public, rows = sf.data.public_part(digits, fraction=0.1, seed=0)  # the same number of each class

# Private rows are refused: what is made from them would carry them out at no recorded cost.
try:
    synthesis.train(digits)
except sf.InputError as error:
    print(error, "\n")

settings = synthesis.settings_for("tiny", steps=40, batch_size=16, rampup=160)
synthesis.train(public, settings, out="model", rows=rows, source={"data": "digits"}, grids=1)
synthesis.resume("model", steps=60, grids=1)  # as after a crash: it goes on exactly
print("pictures on the way:", *sorted(path.name for path in Path("model/grids").iterdir()))

synthesis.sample("model", "samples.npz", count=200, steps=8)
samples, origin = synthesis.read_samples("samples.npz")
made_from = origin["public"]
print(f"{len(samples)} rows, {samples.provenance}, from {made_from['rows']} {made_from['provenance']} ones\n")

# How good are they after so little training? Not very.
print(synthesis.evaluate(samples, public, classifier_steps=100, out="quality"))

# Whoever trains privately on the rest leaves these rows out.
_, private = sf.data.public_split(digits.targets, fraction=0.1, seed=0)
with np.load("model/public.npz") as held:
    print("\npublic rows among the private ones:", len(set(held["rows"]) & set(private)))
