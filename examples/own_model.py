"""Your own torch.nn.Module and your own tensors: nothing to wrap, register or replace."""

import torch
from torch import nn

import saltflat as sf


class Quarters(nn.Module):
    """Looks at the four quarters of an image with the same weights, and mixes what it sees.

    A shared layer, two bare parameters and a derived weight (the softmax): the engine follows them all.
    """

    def __init__(self) -> None:
        super().__init__()
        self.look = nn.Linear(16, 64)
        self.position = nn.Parameter(torch.randn(4, 64))
        self.mixing = nn.Parameter(torch.zeros(4, 64))
        self.answer = nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        quarters = images.unfold(2, 4, 4).unfold(3, 4, 4).reshape(-1, 4, 16)
        seen = torch.tanh(self.look(quarters) + self.position)
        return self.answer(torch.einsum("nqf,qf->nf", seen, self.mixing.softmax(0)))


digits = sf.data.load("digits")
images, labels = digits.train.inputs, digits.train.targets  # plain tensors, as yours would be

plan = sf.plans.dp_sgd(epsilon=4.0, delta=1e-4, population=1437, batch_size=256, epochs=20)
run = sf.fit(Quarters(), (images, labels), plan, evaluate=digits.test)

print(plan)
print("\nhow the gradient of each parameter was taken, example by example:")
for name, rule in run.rules.items():
    print(f"  {name:14} {rule}")
print(f"\ntest accuracy {run.accuracy:.1%}, ε = {run.epsilon:.3f}")
