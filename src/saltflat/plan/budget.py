"""What the user is willing to spend, and on whose behalf."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from saltflat.accounting import Relation, check_delta
from saltflat.errors import InputError, is_number

Unit = Literal["example", "person", "client"]


@dataclass(frozen=True)
class Budget:
    """ε and δ, the relation between neighbouring data sets, and the unit that is protected.

    ``relation`` is ``"add-remove"`` (the number of rows is secret and declared), or ``"zero-out"`` (the same
    ε, with the number of rows and the classes public). ``unit`` is one example, one person with several rows,
    or one client.

    >>> Budget(1.0, 1e-5)
    Budget(epsilon=1.0, delta=1e-05, relation='add-remove', unit='example')
    """

    epsilon: float
    delta: float
    relation: Relation = "add-remove"
    unit: Unit = "example"

    def __post_init__(self) -> None:
        if not is_number(self.epsilon) or not self.epsilon > 0:
            raise InputError(
                "epsilon", self.epsilon, "epsilon > 0",
                cure="1 to 8 is usual; smaller is more private. float('inf') adds no noise: not private.",
            )  # fmt: skip
        check_delta(self.delta)
        if self.relation not in ("add-remove", "zero-out"):
            raise InputError("relation", self.relation, "'add-remove' or 'zero-out'")
        if self.unit not in get_args(Unit):
            raise InputError("unit", self.unit, "'example', 'person' or 'client'")
