"""Rounds over Flower's messages, without processes: packing, hostile replies, nodes that vanish or lie."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from federated_helpers import plan_of, weights_of
from torch import Tensor, nn

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'saltflat[federated]'")

from flower_helpers import Content, InsideGrid, task_identity
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

import saltflat as sf
from saltflat.errors import InputError, SaltflatError
from saltflat.federated import Answer, Simulation, Task, prepare_rounds
from saltflat.federated.aggregate import Form, sum_of_clipped
from saltflat.federated.clients import clients_for, load_rows
from saltflat.federated.flower import FlowerEngine, Job
from saltflat.federated.flower.client_app import home_of, workers
from saltflat.federated.flower.messages import pack_answers, pack_task, read_answers, read_task, tensor_of
from saltflat.plan import LocalTraining, OwnGradient, Plan
from saltflat.training.losses import cross_entropy

WORDS = {"data": "digits", "clients": 30, "partition": "dirichlet", "alpha": 0.5, "seed": 3}
SPEC = {"name": "mlp", "overrides": {"classes": 10, "in_features": 64}}
# One batch an epoch: the order of rows, which every process draws for itself, then does not matter.
SETTINGS: dict[str, Any] = {"local_batch_size": 1000, "local_epochs": 2, "rounds": 3}


@pytest.fixture(autouse=True)
def _identity() -> Any:
    with task_identity():
        yield


def job_of(plan: Plan, **words: Any) -> Job:
    return Job(plan.to_toml(), SPEC, WORDS | words)


def trained(plan: Plan, engine_of: Any, count: int | None = None) -> Tensor:
    """Weights after some rounds of a seeded run."""
    torch.manual_seed(3)
    model = sf.models.build(SPEC["name"], **SPEC["overrides"])
    session = prepare_rounds(model, engine_of(model), plan, seed=3)
    for number, _ in enumerate(session.loop, start=1):
        if number == count:
            break
    return weights_of(model)


def simulated(**changes: Any) -> Any:
    return lambda model: Simulation(model, clients_for(load_rows(WORDS), WORDS), cross_entropy, **changes)


def over_flower(plan: Plan, nodes: int = 4, **changes: Any) -> Any:
    timeout = changes.pop("timeout", 60.0)
    return lambda model: FlowerEngine(
        InsideGrid(job_of(plan), nodes, **changes), 30, nodes=nodes, timeout=timeout
    )


def some_task() -> Task:
    weights = {"a": torch.arange(6.0).view(2, 3), "scale": torch.tensor(2.5)}
    mask = {"a": torch.tensor([[True, False, True]] * 2), "scale": torch.tensor(True)}
    local = LocalTraining(epochs=2, penalty=1.0)
    return Task(7, weights, local, OwnGradient(0.5, True), 0.1, 0.2, mask, own=0.5, scale=2.5)


def test_a_task_arrives_as_it_was_sent() -> None:
    task, clients = read_task(RecordDict.inflate(*_carried(pack_task(some_task(), [3, 9]))))
    assert clients == [3, 9]
    assert task.facts() == some_task().facts()
    for name, value in some_task().arrays().items():
        assert torch.equal(task.arrays()[name], value)
        assert task.arrays()[name].dtype == value.dtype


def _carried(content: Any) -> tuple[bytes, dict[str, Any]]:
    """What a RecordDict becomes on the wire, and its parts, which take the same way."""
    children = {}
    for child in (content.children or {}).values():
        children[child.object_id] = type(child).inflate(*_carried(child))
    return content.deflate(), children


def test_a_message_that_is_no_task_is_an_input_error() -> None:
    with pytest.raises(InputError, match="a saltflat server"):
        read_task(RecordDict({"task": ConfigRecord({"clients": [1]})}))


GOOD = {"w": torch.tensor([3.0, 4.0]), "b": torch.tensor([0.0])}


def arrays(**parts: Any) -> ArrayRecord:
    given = {name: value.numpy() for name, value in GOOD.items()} | parts
    return ArrayRecord({name: v if isinstance(v, Array) else Array(v) for name, v in given.items()})


HOSTILE: dict[str, Any] = {
    "not a number": arrays(w=np.array([math.nan, 0.0], dtype=np.float32)),
    "infinite": arrays(b=np.array([-math.inf], dtype=np.float32)),
    "too long": arrays(w=np.zeros(3, dtype=np.float32)),
    "too wide": arrays(w=np.zeros((2, 1), dtype=np.float32)),
    "too fine": arrays(w=np.zeros(2, dtype=np.float64)),
    "whole numbers": arrays(w=np.zeros(2, dtype=np.int64)),
    "one more": arrays(c=np.zeros(1, dtype=np.float32)),
    "no arrays": ConfigRecord({"w": 1}),
    "no npy": arrays(w=Array("float32", (2,), "numpy.ndarray", b"PK\x03\x04 nothing")),
    "cut short": arrays(w=Array("float32", (2,), "numpy.ndarray", Array(np.zeros(2, np.float32)).data[:-1])),
    "pickled": arrays(w=Array("object", (1,), "pickle", b"cos\nsystem\n(S'false'\ntR.")),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_answer_is_a_zero(kind: str) -> None:
    content = RecordDict(
        {"about": ConfigRecord({"number": 2}), "client-1": HOSTILE[kind], "client-4": arrays()}
    )
    found = sum_of_clipped(read_answers(content, 2, [1, 4]), [1, 4], Form.of(GOOD), 1.0)
    assert found.total.tolist() == pytest.approx([0.6, 0.8, 0.0])


def test_an_enormous_answer_is_clipped_and_others_of_the_node_count_nothing() -> None:
    """A node answers for the clients that it was asked about."""
    big = arrays(w=np.array([3e18, 4e18], dtype=np.float32))
    content = RecordDict({"about": ConfigRecord({"number": 2}), "client-1": big, "client-9": arrays()})
    found = sum_of_clipped(read_answers(content, 2, [1]), [1, 9], Form.of(GOOD), 1.0)
    assert found.total.tolist() == pytest.approx([0.6, 0.8, 0.0])


@pytest.mark.parametrize("about", [None, ConfigRecord({"number": 1}), ConfigRecord({"other": 2}), arrays()])
def test_a_reply_to_another_round_holds_no_answers(about: Any) -> None:
    parts = {"client-1": arrays()} | ({} if about is None else {"about": about})
    assert list(read_answers(RecordDict(parts), 2, [1])) == []


def test_a_header_that_promises_more_is_refused_before_memory_is_reserved() -> None:
    plain = Array(np.array([3.0, 4.0], dtype=np.float32))
    assert tensor_of(plain).tolist() == [3.0, 4.0]
    for more in (b"(2,)          ", b"(99999999999,)", b"(3,)          ", b"(-2,)         "):
        head, data = plain.data[:128], plain.data[128:]
        changed = head.replace(b"(2,), }" + b" " * 10, more[:14] + b", }")
        assert len(changed) == len(head)
        held = Array("float32", (2,), "numpy.ndarray", changed + data)
        if more.startswith(b"(2,)"):
            assert tensor_of(held).tolist() == [3.0, 4.0]
        else:
            with pytest.raises(ValueError, match="another size"):
                tensor_of(held)


@pytest.mark.parametrize("method", ["dp-fedavg", "dp-fedsam-topk"])
@pytest.mark.parametrize("nodes", [4, 30])
def test_messages_change_nothing(method: str, nodes: int) -> None:
    """Also with one client a node."""
    plan = plan_of(method, **SETTINGS)
    here, there = trained(plan, simulated()), trained(plan, over_flower(plan, nodes))
    assert torch.allclose(here, there, atol=1e-6)


def test_a_node_that_is_gone_is_zeros_and_nothing_else() -> None:
    """Divisor and noise stay: the same model as when its clients keep silent in the simulation."""
    plan = plan_of(**SETTINGS)

    def engine_of(model: nn.Module) -> FlowerEngine:
        engine = over_flower(plan)(model)
        engine.wait(5)
        engine.grid.gone.add(102)
        return engine

    silent = trained(plan, simulated(drop=lambda _, client: client % 4 == 2))
    assert torch.allclose(trained(plan, engine_of), silent, atol=1e-6)
    assert not torch.allclose(silent, trained(plan, simulated()), atol=1e-3)


@pytest.mark.parametrize("kind", ["nothing", "an error", "garbage", "yesterday's", "cannot be read"])
def test_a_node_that_answers_badly_is_zeros_and_nothing_else(kind: str) -> None:
    """A reply that never comes is waited for until the timeout and no longer."""
    plan = plan_of(**SETTINGS)

    def change(part: int, reply: Any) -> Any:
        if part != 2:
            return reply
        if kind == "nothing":
            return None
        if kind == "cannot be read":
            return ValueError("what a node can make Flower's reader raise")
        if kind == "an error":
            reply.has_content = lambda: False
            return reply
        if kind == "garbage":
            return Content(["no", "records"])
        return Content(pack_answers(0, [Answer(client, GOOD) for client in range(30)]))

    found = trained(plan, over_flower(plan, change=change, timeout=1.0))
    silent = trained(plan, simulated(drop=lambda _, client: client % 4 == 2))
    assert torch.allclose(found, silent, atol=1e-6)


def test_a_lost_connection_of_the_server_is_an_error() -> None:
    """It is no answer of a client: the round is recorded, and the run can go on later."""
    import httpx

    plan = plan_of(**SETTINGS)
    with pytest.raises(httpx.ConnectError):
        trained(plan, over_flower(plan, change=lambda part, reply: httpx.ConnectError("gone")))


def test_late_replies_are_never_read() -> None:
    """What came too late for the first round arrives in the second, and changes nothing."""
    plan = plan_of(**SETTINGS)
    late: list[Any] = []
    engines: list[FlowerEngine] = []

    def change(part: int, reply: Any) -> Any:
        replies = engines[0].grid.replies
        if reply.content["about"]["number"] == 2:
            for name in [name for name, held in replies.items() if not held]:
                replies[name] = late[:1]
        if part != 1:
            return reply
        late.append(reply)
        return None

    def engine_of(model: nn.Module) -> FlowerEngine:
        engines.append(over_flower(plan, change=change, timeout=0.5)(model))
        return engines[0]

    silent = trained(plan, simulated(drop=lambda _, client: client % 4 == 1), count=2)
    assert torch.allclose(trained(plan, engine_of, count=2), silent, atol=1e-6)
    assert any(held is late[0] for replies in engines[0].grid.replies.values() for held in replies)


def test_nobody_can_take_the_place_of_a_node() -> None:
    plan = plan_of(**SETTINGS)
    engine = over_flower(plan)(None)
    assert engine.homes() == {part: 100 + part for part in range(4)}
    for node, told in (
        (900, {"partition-id": 2, "num-partitions": 4}),
        (901, {"partition-id": 0, "num-partitions": 3}),
    ):
        engine.grid.homes[node] = type(engine.grid.homes[100])(
            1, node, told, RecordDict(), engine.grid.homes[100].run_config
        )
    assert engine.homes() == {part: 100 + part for part in range(4)}
    engine.grid.gone.add(102)  # now the place is free, but who came too late is not asked again
    assert engine.homes() == {0: 100, 1: 101, 3: 103}


def test_only_clients_of_the_cohort_are_named_and_only_at_their_node() -> None:
    plan = plan_of(**SETTINGS)
    engine = over_flower(plan)(None)
    weights = {n: w.detach() for n, w in job_of(plan).model().named_parameters()}
    task = Task(1, weights, LocalTraining(epochs=1), OwnGradient(0.1), 0.1, 1.0)
    assert sorted(answer.client for answer in engine.collect(task, [0, 4, 5, 29])) == [0, 4, 5, 29]
    told = [
        read_task(message.content)[1]
        for message in engine.grid.sent
        if message.metadata.message_type == "train"
    ]
    assert sorted(told) == [[0, 4], [5, 29]]


def test_shared_noise_is_refused_where_the_server_sees_every_answer() -> None:
    plan = plan_of(survivors=5, rate=1.0, **SETTINGS)
    with pytest.raises(InputError, match="secure aggregation"):
        trained(plan, over_flower(plan))


def test_too_few_nodes_are_said_with_what_is_missing() -> None:
    plan = plan_of(**SETTINGS)
    engine = FlowerEngine(InsideGrid(job_of(plan), 3), 30, nodes=4)
    with pytest.raises(SaltflatError, match="num-partitions=4"):
        engine.wait(0.2)
    with pytest.raises(InputError, match="nodes <= 30"):
        FlowerEngine(engine.grid, 30, nodes=31)


def test_a_node_with_rows_of_its_own_is_one_client(tmp_path: Any) -> None:
    rows = "\n".join(f"{i % 7},{(i * 3) % 5},{i % 2}" for i in range(40))
    (tmp_path / "mine.csv").write_text(f"a,b,outcome\n{rows}\n")
    job = Job("", {"name": "mlp", "overrides": {"classes": 2, "in_features": 2}}, WORDS)
    config = {
        "partition-id": 2, "num-partitions": 5, "data": str(tmp_path / "mine.csv"), "label": "outcome",
    }  # fmt: skip
    here = workers(job, config)
    assert [len(rows) > 0 for rows in here.clients.rows_of] == [False, False, True, False, False]


@pytest.mark.parametrize("config", [{}, {"partition-id": 4, "num-partitions": 4}, {"partition-id": "0"}])
def test_a_node_must_know_where_it_is(config: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="num-partitions"):
        home_of(config)
