"""Methods are values: SAI with Adam, an exponential average and several views of each image, in one call."""

from dataclasses import replace

import saltflat as sf
from saltflat.plan import AutomaticClipping, NoAveraging

digits = sf.data.load("digits")

plan = sf.plans.sai(
    epsilon=3.0, delta=1e-4, population=1437, batch_size=256, epochs=6,
    switch=0.3, noise_ratio=1.5, rho=0.05,          # two phases, calibrated jointly
    optimizer="adam", learning_rate=0.01,           # any torch.optim, stepping with releases
    averaging=sf.plans.Ema(decay=0.9),              # over released iterates: free
    clipping=AutomaticClipping(),                   # normalise instead of clip
    multiplicity=sf.plans.Multiplicity(views=4, augmentations=("crop",)),  # mean of four, then the clip
)  # fmt: skip
print(plan)

run = sf.fit(sf.models.build("mlp"), digits.train, plan, evaluate=digits.test)
print(f"\nlast iterate {run.accuracy:.1%}, average {run.average_accuracy:.1%}, ε = {run.epsilon:.3f}")

# What was composed is post-processing, or happens before the clip: the privacy event does not change.
bare = replace(plan, optimizer=None, averaging=NoAveraging(), multiplicity=sf.plans.Multiplicity())
print("same cost without it:", bare.events() == plan.events())
