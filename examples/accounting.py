"""What a budget buys: noise from ε, ε from noise, one phase or several, before any data is touched."""

import saltflat as sf
from saltflat.accounting import SampledGaussian, epsilon
from saltflat.plan import Phase, Plan, Poisson

budget = sf.Budget(epsilon=1.0, delta=1e-5)
sampling = Poisson(population=50_000, batch_size=2048)

# One phase: the least noise that keeps 732 steps within the budget.
flat = Plan(sampling, (Phase(steps=732, clip_norm=0.1),), budget).calibrated_to(budget)
print(f"one phase    σ = {flat.phases[0].sigma}, ε = {flat.epsilon:.4f}")

# Two phases at a given ratio of noise, solved together.
ratio = Plan(sampling, (Phase(244, 0.1), Phase(488, 0.1, noise_ratio=10.0)), budget).calibrated_to(budget)
print(f"ratio 1:10   σ = {[p.sigma for p in ratio.phases]}, ε = {ratio.epsilon:.4f}")

# The first phase fixed: the second one gets whatever is left.
rest = Plan(sampling, (Phase(244, 0.1, noise_multiplier=2.931), Phase(488, 0.1)), budget).calibrated_to(
    budget
)
print(f"first fixed  σ = {[p.sigma for p in rest.phases]}, ε = {rest.epsilon:.4f}")

# What adding up the phases' own ε would have said of that plan, and what it is worth together.
alone = [rest.phase_epsilon(phase) for phase in rest.phases]
print(f"             alone {alone[0]:.3f} + {alone[1]:.3f} = {sum(alone):.3f}, jointly {rest.epsilon:.3f}")

# From noise to ε, without a plan; and the same releases under other views.
event = SampledGaussian(noise_multiplier=1.0, rate=0.01, steps=1000)
print(f"σ = 1, q = 0.01, 1000 steps: ε = {epsilon([event], 1e-5):.3f} (PLD), "
      f"{epsilon([event], 1e-5, accountant='rdp'):.3f} (RDP), "
      f"{epsilon([event], 1e-5, relation='replace-one'):.3f} (replace one)")  # fmt: skip
print(f"of a plan: {rest.epsilon_rdp:.3f} (RDP), {rest.epsilon_replace_one:.3f} (replace one)")
