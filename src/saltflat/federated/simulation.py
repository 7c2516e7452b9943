"""The engine that has all clients in one process: thousands of them, one model, rows fetched when they are needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from saltflat.engine.batch import LossFunction
from saltflat.errors import check_count
from saltflat.federated.clients import Clients
from saltflat.federated.local import finished, updates
from saltflat.federated.protocol import Answer, Task
from saltflat.mechanism.randomness import Source

# Stacking pays for models whose steps are mostly overhead; see `saltflat.federated.local`.
SMALL = 100_000
STACK = 50

Tamper = Callable[[int, int, dict[str, Tensor]], Sequence[object]]
"""From a round, a client and its update to what it sends instead, for tests of hostile clients."""


def stacking_pays(model: nn.Module) -> bool:
    """Whether several clients of this model are trained faster by one call: where a step is mostly overhead.

    Convolutions with weights of their own for each client are grouped ones, which are slow on a CPU.

    >>> stacking_pays(nn.Linear(64, 10)), stacking_pays(nn.Conv2d(1, 8, 3))
    (True, False)
    """
    convolves = any(isinstance(module, nn.modules.conv._ConvNd) for module in model.modules())
    return not convolves and sum(p.numel() for p in model.parameters()) <= SMALL


class Simulation:
    """Clients that answer at once, in groups of ``together`` (50 for small models without convolutions, else one).

    ``noise`` is where clients take their share of the noise from, if the plan shares it. ``drop`` says which clients
    do not answer in a round, ``tamper`` what they send instead: for trying a plan out.
    """

    def __init__(
        self,
        model: nn.Module,
        clients: Clients,
        loss_fn: LossFunction,
        device: torch.device | str = "cpu",
        *,
        together: int | None = None,
        drop: Callable[[int, int], bool] | None = None,
        tamper: Tamper | None = None,
    ) -> None:
        self.together = (STACK if stacking_pays(model) else 1) if together is None else together
        check_count("together", self.together)
        self.model, self.clients, self.loss_fn = model, clients, loss_fn
        self.device = torch.device(device)
        self.drop, self.tamper = drop, tamper
        self.noise: Source | None = None

    def __len__(self) -> int:
        return len(self.clients)

    def collect(self, task: Task, cohort: Sequence[int]) -> Iterator[Answer]:
        """Train the clients of a cohort, group by group, and hand out their answers one by one."""
        asked = [c for c in cohort if self.drop is None or not self.drop(task.number, c)]
        for first in range(0, len(asked), self.together):
            some = asked[first : first + self.together]
            rows = [self.clients.rows(client).to(self.device) for client in some]
            for client, update in zip(some, updates(self.model, task, rows, self.loss_fn)):
                sent = finished(update, task, self.noise)
                if self.tamper is None:
                    yield Answer(client, sent)
                else:
                    yield from (Answer(client, other) for other in self.tamper(task.number, client, sent))
