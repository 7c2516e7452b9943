"""Rows that belong to people: the guarantee is for all rows of a person together."""

import torch

import saltflat as sf

digits = sf.data.load("digits")
writers = torch.arange(len(digits.train)) % 400  # say that 400 people wrote three or four digits each

settings = {"epsilon": 6.0, "delta": 1e-4, "epochs": 12}
by_row = sf.plans.dp_sgd(population=1437, batch_size=256, **settings)
# Now a unit is a person: 400 are declared, 100 of them are expected in a batch, and each is clipped once.
by_person = sf.plans.dp_sgd(unit="person", population=400, batch_size=100, **settings)

rows = sf.fit(sf.models.build("mlp"), digits.train, by_row, evaluate=digits.test)
people = sf.fit(sf.models.build("mlp"), digits.train, by_person, evaluate=digits.test, groups=writers)

for run in (rows, people):
    unit, phase = run.plan.budget.unit, run.plan.phases[0]
    print(f"one {unit:7}  σ = {phase.sigma:.2f} over {phase.steps} steps  test {run.accuracy:.1%}")
print("\n" + str(people.certificate).splitlines()[0])
