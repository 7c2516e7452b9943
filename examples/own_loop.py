"""Your own training loop: sf.steps hands control back after each release."""

import torch
from torch import nn

import saltflat as sf

digits = sf.data.load("digits")
model = sf.models.build("mlp")
plan = sf.plans.dp_sat(epsilon=3.0, delta=1e-4, population=1437, batch_size=256, epochs=30)


def accuracy(part: sf.data.Examples) -> float:
    with torch.no_grad():
        return float((model(part.inputs).argmax(1) == part.targets).float().mean())


def half_way_down(done: float) -> float:
    """A factor on the learning rate; post-processing, so it costs nothing."""
    return 1.0 if done < 0.5 else 2 * (1 - done)


def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.3, momentum=0.9, nesterov=True)


for step in sf.steps(model, digits.train, plan, optimizer=optimizer, schedule=half_way_down):
    # The model has just been updated with a release. Whatever you do with its weights here is free;
    # looking at the private rows again would not be, so only test rows are looked at.
    if step.number % 40 == 0 or step.number == step.steps:
        print(
            f"step {step.number:3} of {step.steps}, epoch {step.epoch:4.1f}: test {accuracy(digits.test):.1%}"
        )
        if accuracy(digits.test) > 0.97:
            break  # allowed, and without reward: the whole plan's ε is spent

print(f"the plan's ε = {plan.epsilon:.3f} at δ = {plan.budget.delta:g}, whenever the loop ends")
