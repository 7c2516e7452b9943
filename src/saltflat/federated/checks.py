"""What must hold of a model before clients train it: everything that local training changes is in the update."""

from __future__ import annotations

import torch
from torch import nn

from saltflat.data.people import Rows
from saltflat.data.source import map_tensors
from saltflat.engine.batch import LossFunction
from saltflat.errors import RefusedError, SaltflatError
from saltflat.federated.local import updates
from saltflat.federated.protocol import Task
from saltflat.plan import LocalTraining, NoAscent
from saltflat.training.build import trainable
from saltflat.training.checks import cannot_take


def check_model(model: nn.Module) -> None:
    """Refuse models with state that would leave a client beside its clipped update."""
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) or getattr(
            module, "track_running_stats", False
        ):
            raise RefusedError(
                f"A model with {type(module).__name__} ({name})",
                "it keeps running statistics of a client's rows, and they are in no update that could be clipped.",
                "Use GroupNorm: saltflat.models.make_private_friendly(model).",
            )
    kept = model.state_dict(keep_vars=True).keys()
    for name, buffer in model.named_buffers():
        if name in kept and not buffer.is_floating_point():
            raise RefusedError(
                f"A model with the buffer {name} of type {str(buffer.dtype).removeprefix('torch.')}",
                "what is sent between server and clients is clipped and noised, and whole numbers cannot be.",
                "Register it with persistent=False if it is a constant, or make it a float.",
            )
    types = {weight.dtype for weight in trainable(model).values()}
    if len(types) > 1 or not all(kind in (torch.float32, torch.float64) for kind in types):
        raise RefusedError(
            f"A model with weights of type {', '.join(sorted(map(str, types)))}",
            "updates are added up as one vector.",
            "Make all trainable weights float32: model.float().",
        )


def rehearse(model: nn.Module, rows: Rows, loss_fn: LossFunction) -> bool:
    """One local step on blank rows of the data's shape: what is wrong with the model shows here.

    Buffers that a step changes would leave a client without being clipped: such a model is refused. Returns whether
    several clients can be trained together: not every operation can be stacked.
    """
    blank = Rows(
        map_tensors(lambda t: torch.zeros_like(t[:2]), rows.inputs), torch.zeros_like(rows.targets[:2])
    )
    weights = {name: weight.detach() for name, weight in trainable(model).items()}
    task = Task(1, weights, LocalTraining(epochs=1, batch_size=2), NoAscent(), 1e-3, 1.0)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    state = torch.get_rng_state()
    try:
        updates(model, task, [blank], loss_fn)
    except SaltflatError:
        raise
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        raise cannot_take(model, "a batch of a client's rows", "blank rows", error) from error
    changed = [name for name, buffer in model.named_buffers() if not torch.equal(buffer, before[name])]
    if changed:
        raise RefusedError(
            f"A model whose buffer {changed[0]} changes in training",
            "it is no trainable weight, so it would leave a client without being clipped.",
            "Use layers without running state.",
        )
    try:
        updates(model, task, [blank, blank], loss_fn)
        return True
    except (RuntimeError, IndexError, TypeError, ValueError):
        return False
    finally:
        torch.set_rng_state(state)
