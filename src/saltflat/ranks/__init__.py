"""Several processes that train one model: who is there, what they tell one another, how they end."""

from saltflat.ranks.group import LEADER, Group, own_part, shard

__all__ = ["LEADER", "Group", "own_part", "shard"]
