"""From words to rows and clients: the same on the command line, at a server and on every node of a network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saltflat import plans
from saltflat.data import DataSet, load
from saltflat.federated.clients import Clients, partition


def load_rows(words: Mapping[str, Any]) -> DataSet:
    """The data set, with public rows set aside if the words ask for them."""
    return load(
        words["data"],
        data_dir=words.get("data_dir"),
        label=words.get("label"),
        group=words.get("group"),
        public_fraction=words.get("public_fraction"),
    )


def clients_for(data: DataSet, words: Mapping[str, Any]) -> Clients:
    """The rows dealt out as the words say. It follows from the words alone, so all machines deal alike."""
    by = words.get("partition") or ("column" if words.get("group") else "iid")
    seed = words.get("partition_seed")
    if by == "column":
        return partition(data.train, None, by=by)
    clients = words.get("clients")
    return partition(
        data.train, plans.DEFAULT_CLIENTS if clients is None else clients,
        by=by, alpha=0.6 if words.get("alpha") is None else words["alpha"], seed=0 if seed is None else seed,
    )  # fmt: skip
