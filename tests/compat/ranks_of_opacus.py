"""What each rank of a group does with Opacus's interface. Started by ``torchrun``: a folder, and which part.

Every rank leaves what it found in a file of its own.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import Replicate
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from saltflat.compat.opacus import BatchMemoryManager, DPDataLoader, PrivacyEngine
from saltflat.compat.opacus.distributed import DifferentiallyPrivateDistributedDataParallel as DPDDP
from saltflat.compat.opacus.grad_sample import GradSampleModuleFastGradientClippingTP
from saltflat.compat.opacus.utils.fsdp_utils import FSDP2Wrapper
from saltflat.errors import LostRankError

ROWS, BATCH, CLIP, SIGMA, DELTA = 24, 6, 0.7, 1.5, 1e-3
NORMS = [0.3, 0.2, 0.5, 0.1]  # one for each parameter


def net(seed: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def rows(count: int = ROWS) -> TensorDataset:
    source = torch.Generator().manual_seed(3)
    inputs = torch.randn(count, 4, generator=source, dtype=torch.float64) * 3
    return TensorDataset(inputs, torch.randint(0, 3, (count,), generator=source))


def fixed(ranks: int, rank: int, data: TensorDataset | None = None) -> DataLoader[Any]:
    """The same four batches of six rows for any number of ranks: rows i with i mod ranks = rank, in order."""
    data = data or rows()
    sampler = DistributedSampler(data, num_replicas=ranks, rank=rank, shuffle=False)
    return DataLoader(data, batch_size=BATCH // ranks, sampler=sampler)


def weights(model: nn.Module) -> dict[str, Tensor]:
    """By their names in the plain model."""
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def trained(
    wrap: Callable[[nn.Module], nn.Module],
    loader: DataLoader[Any],
    epochs: int = 2,
    model: nn.Module | None = None,
    physical: int | None = None,
    **options: Any,
) -> dict[str, Any]:
    """The loop that everybody writes; on several ranks each begins with weights of its own, and rank 0's count."""
    inner = model or net(1 + (dist.get_rank() if dist.is_initialized() else 0))
    engine = PrivacyEngine(**{key: options.pop(key) for key in ("secure_mode",) if key in options})
    settings = {"noise_multiplier": 0.0, "max_grad_norm": CLIP, "poisson_sampling": False} | options
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spread = wrap(inner)
        optimizer = torch.optim.SGD(spread.parameters(), lr=0.5, momentum=0.9)
        made = engine.make_private(module=spread, optimizer=optimizer, data_loader=loader, **settings)
        module, private, loader = made[0], made[1], made[-1]
        call = module if settings.get("wrap_model", True) else spread
        plain = nn.CrossEntropyLoss(reduction=settings.get("loss_reduction", "mean"))
        criterion = made[2] if len(made) == 4 else plain
        for _ in range(epochs):
            manager = physical and BatchMemoryManager(
                data_loader=loader, max_physical_batch_size=physical, optimizer=private
            )
            for x, y in manager.__enter__() if manager else loader:
                private.zero_grad()
                criterion(call(x), y).backward()
                private.step()
            if manager:
                manager.__exit__(None, None, None)
    return {
        "weights": weights(inner),
        "values": len(made),
        "optimizer": type(private).__name__,
        "divisor": private.expected_batch_size,
        "history": engine.accountant.history,
        "epsilon": engine.get_epsilon(DELTA) if settings["noise_multiplier"] else None,
        "drawn": getattr(loader.batch_sampler, "drawn", None),
        "average": engine.average,
    }


# --- the same result as one process ------------------------------------------------------------------------

CASES: dict[str, dict[str, Any]] = {
    "hooks": {},
    "hooks, not wrapped": {"wrap_model": False},
    "hooks, not divided": {"loss_reduction": "sum", "max_grad_norm": 0.01},
    "torch's wrapper": {"wrap": DDP},
    "torch's wrapper, not wrapped": {"wrap": DDP, "wrap_model": False},
    "ew": {"grad_sample_mode": "ew"},
    "ghost": {"grad_sample_mode": "ghost"},
    "ghost_fsdp": {"grad_sample_mode": "ghost_fsdp", "wrap": FSDP2Wrapper},
    "ghost_fsdp, not wrapped": {
        "grad_sample_mode": "ghost_fsdp",
        "wrap": FSDP2Wrapper,
        "wrap_model": False,
    },
    "ghost_fsdp in DPDDP": {"grad_sample_mode": "ghost_fsdp"},
    "per layer": {"clipping": "per_layer", "max_grad_norm": NORMS},
    "dp-sat+ema": {"method": "dp-sat+ema"},
    "parts of a batch": {"physical": 2},
}


def case(name: str, ranks: int, rank: int) -> dict[str, Any]:
    """A case on these ranks; with one, as an ordinary script has it."""
    options = dict(CASES[name])
    wrap = options.pop("wrap", DPDDP)
    if ranks == 1:
        wrap = lambda model: model  # noqa: E731
        if options.get("grad_sample_mode") == "ghost_fsdp":
            options["grad_sample_mode"] = "ghost"
    return trained(wrap, fixed(ranks, rank), **options)


# --- noise ---------------------------------------------------------------------------------------------------


class Blind(nn.Module):
    """Sees no row: all gradients are zero."""

    def __init__(self, size: int = 40_000) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ torch.zeros(x.shape[1], 3, dtype=x.dtype)) + 0 * self.weight.sum()


def noise(wrap: Callable[[nn.Module], nn.Module], steps: int = 3, **options: Any) -> dict[str, Any]:
    """What three releases moved weights by, times the whole divisor; every rank has the same seed."""
    torch.manual_seed(0)
    model, engine = Blind(), PrivacyEngine(secure_mode=options.pop("secure_mode", False))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spread = wrap(model)
        optimizer = torch.optim.SGD(spread.parameters(), lr=1.0)
        made = engine.make_private(
            module=spread, optimizer=optimizer, data_loader=DataLoader(rows(), batch_size=BATCH),
            noise_multiplier=SIGMA, max_grad_norm=options.pop("max_grad_norm", CLIP), **options,
        )  # fmt: skip
        module, private, loader = made[0], made[1], made[-1]
        criterion = made[2] if len(made) == 4 else nn.CrossEntropyLoss()
        found = []
        for x, y in loader:
            before = model.weight.detach().clone()
            private.zero_grad()
            criterion(module(x), y).backward()
            private.step()
            found.append((before - model.weight.detach()) * BATCH)
            if len(found) == steps:
                break
    return {"moved": found, "history": engine.accountant.history}


# --- shards ---------------------------------------------------------------------------------------------------


def drawn(secure: bool, epochs: int = 40) -> list[list[int]]:
    """Which rows this rank drew, step by step; every rank has the same seed."""
    torch.manual_seed(0)
    stream = PrivacyEngine(secure_mode=True).secure_rng if secure else None
    data = TensorDataset(torch.arange(100))
    loader = DPDataLoader(data, sample_rate=0.1, distributed=True, generator=stream)
    found = []
    for epoch in range(epochs):
        loader.batch_sampler.set_epoch(epoch + dist.get_rank())  # ranks that count differently
        found += [batch[0].tolist() for batch in loader]
    return found


# --- what is refused ------------------------------------------------------------------------------------------


def refusals() -> dict[str, str]:
    """What is said to ranks that do not fit together; afterwards they can go on."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    whole = DataLoader(rows(), batch_size=BATCH)
    padded = rows(ROWS + 1)
    tried: dict[str, Callable[[], Any]] = {
        "all rows on each rank": lambda: trained(DPDDP, whole),
        "a row on two ranks": lambda: trained(DPDDP, fixed(ranks, rank, padded)),
        "another's shard": lambda: trained(DPDDP, fixed(ranks, 1 - rank)),
        "noise": lambda: trained(DPDDP, whole, noise_multiplier=1.0 + rank, poisson_sampling=True),
        "clip norm": lambda: trained(DPDDP, whole, max_grad_norm=1.0 + rank, poisson_sampling=True),
        "rows": lambda: trained(
            DPDDP, DataLoader(rows(ROWS + rank), batch_size=BATCH + rank), poisson_sampling=True
        ),
        "model": lambda: DPDDP(nn.Linear(2, 2 + rank)),
        "adaptive": lambda: trained(DPDDP, whole, clipping="adaptive", poisson_sampling=True),
        "a part": lambda: trained(lambda model: nn.Sequential(DPDDP(model)), whole, poisson_sampling=True),
        "ghost_fsdp alone": lambda: trained(
            lambda model: model, whole, grad_sample_mode="ghost_fsdp", poisson_sampling=True
        ),
        "sharded by torch": sharded,
        "tensor parallel": lambda: trained(
            in_pieces, whole, grad_sample_mode="ghost_tp", wrap_model=False, poisson_sampling=True
        ),
        "tensor parallel, by its own class": lambda: GradSampleModuleFastGradientClippingTP(in_pieces(net())),
        "an epoch of its own": epochs_apart,
    }
    said = {}
    for name, attempt in tried.items():
        try:
            attempt()
            said[name] = "nothing"
        except (ValueError, NotImplementedError) as error:
            said[name] = f"{type(error).__name__}: {error}"
    return said


def sharded() -> None:
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    trained(partial(fully_shard, mesh=mesh), DataLoader(rows(), batch_size=BATCH), poisson_sampling=True)


def in_pieces(model: nn.Module) -> nn.Module:
    """The first layer's rows on one rank each."""
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return parallelize_module(model, mesh, {"0": ColwiseParallel(output_layouts=Replicate())})


def epochs_apart() -> None:
    """Shuffled fixed batches of ranks that count epochs differently would overlap."""
    data = rows()
    sampler = DistributedSampler(data, shuffle=True)
    sampler.set_epoch(dist.get_rank())
    trained(DPDDP, DataLoader(data, batch_size=BATCH // dist.get_world_size(), sampler=sampler))


# --- further ---------------------------------------------------------------------------------------------------


def checkpoint(out: Path) -> dict[str, Any]:
    """Rank 0 saves, all ranks load; the next step is that of a run that was not interrupted."""
    rank, ranks = dist.get_rank(), dist.get_world_size()

    def made() -> tuple[Any, ...]:
        model = net(1 + rank)
        spread = DPDDP(model)
        optimizer = torch.optim.SGD(spread.parameters(), lr=0.5, momentum=0.9)
        engine = PrivacyEngine()
        return engine, model, *engine.make_private(
            module=spread, optimizer=optimizer, data_loader=fixed(ranks, rank), noise_multiplier=0.0,
            max_grad_norm=CLIP, poisson_sampling=False,
        )  # fmt: skip

    def steps(module: Any, optimizer: Any, loader: Any) -> None:
        for x, y in loader:
            optimizer.zero_grad()
            nn.CrossEntropyLoss()(module(x), y).backward()
            optimizer.step()

    path = out / "checkpoint.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine, model, module, optimizer, loader = made()
        steps(module, optimizer, loader)
        if rank == 0:
            engine.save_checkpoint(path=path, module=module, optimizer=optimizer)
        dist.barrier()
        steps(module, optimizer, loader)
        other, resumed, module2, optimizer2, loader2 = made()
        other.load_checkpoint(path=path, module=module2, optimizer=optimizer2)
        steps(module2, optimizer2, loader2)
    return {
        "kept": weights(model),
        "resumed": weights(resumed),
        "histories": [engine.accountant.history, other.accountant.history],
    }


def mixed() -> dict[str, Any]:
    """A policy of mixed precision: low inside, weights and gradients as they were."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    seen: list[Any] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spread = FSDP2Wrapper(
            model,
            mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
            opacus_high_precision_layers=(nn.LayerNorm,),
        )
        same = spread is model
        model[1].register_forward_hook(lambda layer, given, out: seen.append((given[0].dtype, out.dtype)))
        data = rows()
        data = TensorDataset(data.tensors[0].float(), data.tensors[1])
        module, optimizer, criterion, loader = PrivacyEngine().make_private(
            module=spread, optimizer=torch.optim.SGD(model.parameters(), lr=1.0), criterion=nn.CrossEntropyLoss(),
            data_loader=DataLoader(data, batch_size=12), noise_multiplier=0.5, max_grad_norm=CLIP,
            grad_sample_mode="ghost_fsdp",
        )  # fmt: skip
        before = model[0].weight.full_tensor().clone()
        for x, y in loader:
            optimizer.zero_grad()
            out = module(x)
            criterion(out, y).backward()
            optimizer.step()
    return {
        "same": same,
        "out": out.dtype,
        "norm": seen[-1][1],
        "grad": model[0].weight.grad.dtype,
        "moved": not torch.equal(before, model[0].weight.full_tensor()),
        "weights": weights(model),
    }


def main(out: Path) -> None:
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    whole = DataLoader(rows(), batch_size=BATCH)
    found: dict[str, Any] = {"refusals": refusals()}
    found["cases"] = {name: case(name, ranks, rank) for name in CASES}
    found["noise"] = {
        "hooks": noise(DPDDP),
        "secure": noise(DPDDP, secure_mode=True),
        "torch's wrapper": noise(DDP),
        "ghost_fsdp": noise(FSDP2Wrapper, grad_sample_mode="ghost_fsdp"),
        "per layer": noise(DPDDP, clipping="per_layer", max_grad_norm=[CLIP]),
    }
    found["drawn"] = {"fast": drawn(False), "secure": drawn(True)}
    found["poisson"] = trained(DPDDP, whole, epochs=3, noise_multiplier=SIGMA, poisson_sampling=True)
    found["nearly empty"] = trained(
        DPDDP,
        DataLoader(rows(), batch_size=1),
        epochs=1,
        noise_multiplier=SIGMA,
        poisson_sampling=True,
        physical=1,
    )
    found["checkpoint"] = checkpoint(out)
    found["mixed"] = mixed()
    torch.save(found, out / f"rank{rank}.pt")
    dist.destroy_process_group()


def losing(out: Path) -> None:
    """Rank 1 is gone in the middle of a release: after all met, before the sums were added up.

    The launcher ends the other rank as soon as it sees that one is gone, and would cut its file short. Rank 0 is to be
    heard to the end, and leaves by itself.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model, engine = net(), PrivacyEngine()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spread = DPDDP(model)
        module, optimizer, loader = engine.make_private(
            module=spread, optimizer=torch.optim.SGD(spread.parameters(), lr=1.0),
            data_loader=DataLoader(rows(), batch_size=BATCH), noise_multiplier=SIGMA, max_grad_norm=CLIP,
        )  # fmt: skip
    steps = 0
    try:
        for x, y in loader:
            optimizer.zero_grad()
            nn.CrossEntropyLoss()(module(x), y).backward()
            if steps == 1 and rank == 1:
                optimizer.add_noise = lambda: os._exit(7)
            before = weights(model)
            optimizer.step()
            steps += 1
    except LostRankError as error:
        said = [str(error)]
        left = [p.grad for p in model.parameters()]
        for _ in range(2):  # who tries again gets no second release of these rows
            try:
                optimizer.step()
            except (LostRankError, ValueError) as again:
                said.append(f"{type(again).__name__}: {again}")
        after = weights(model)
        torch.save(
            {"said": said, "left": left, "before": before, "after": after, "steps": steps,
             "history": engine.accountant.history},
            out / "lost.pt",
        )  # fmt: skip
        os._exit(3)


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"main": main, "losing": losing}[sys.argv[2]](Path(sys.argv[1]))
