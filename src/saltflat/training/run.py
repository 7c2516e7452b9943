"""`Run`: what training gives back, and what can be read again from its folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from saltflat.errors import InputError
from saltflat.plan import Plan
from saltflat.record.canonical import DamagedError
from saltflat.record.certificate import Certificate
from saltflat.record.folder import RunFolder
from saltflat.record.ledger import Ledger
from saltflat.training.evaluate import predict, with_weights


@dataclass(repr=False)
class Run:
    """A trained model with its history and its certificate.

    ``history`` has one row an evaluation (step, epoch, loss, accuracy, ε so far). ``accuracy`` is that of the
    last iterate, never of the best epoch. ``average`` holds the averaged weights, if the plan averages.
    ``evaluations`` records private evaluations where there is no folder for them.
    """

    plan: Plan
    model: nn.Module
    certificate: Certificate
    history: list[dict[str, Any]] = field(default_factory=list)
    average: dict[str, Tensor] | None = None
    rules: dict[str, str] = field(default_factory=dict)
    folder: Path | None = None
    seconds: float = 0.0
    evaluations: Ledger = field(default_factory=Ledger, compare=False)

    def __repr__(self) -> str:
        where = "" if self.folder is None else f", in {self.folder}"
        scored = "" if self.accuracy is None else f", accuracy {self.accuracy:.4f} (not covered)"
        return f"<Run of {self.plan.method}: ε = {self.epsilon:.4g}, δ = {self.plan.budget.delta:g}{scored}{where}>"

    @property
    def epsilon(self) -> float:
        """The certified ε of the whole plan; infinite if the run is not private."""
        return self.certificate.epsilon

    @property
    def accuracy(self) -> float | None:
        """Test accuracy of the last iterate, if test data was given: an exact number, not covered by ε."""
        return self.history[-1].get("accuracy") if self.history else None

    @property
    def average_accuracy(self) -> float | None:
        """Test accuracy of the averaged weights, if the plan averages; not covered by ε."""
        return self.history[-1].get("average_accuracy") if self.history else None

    def predict(self, inputs: Any, *, average: bool = False) -> Tensor:
        """The most likely class of each input (or the output itself, with a single output)."""
        outputs = self.outputs(inputs, average=average)
        return outputs.argmax(1) if outputs.dim() > 1 and outputs.shape[1] > 1 else outputs.flatten()

    def outputs(self, inputs: Any, *, average: bool = False) -> Tensor:
        """What the model says of each input: one number a class, before any softmax, or a single one."""
        if average and self.average is None:
            raise InputError(
                "average", True, "a plan with averaging", problem="is asked for, but nothing was averaged"
            )
        device = next(self.model.parameters()).device
        with with_weights(self.model, self.average if average else None):
            return predict(self.model, inputs, device)

    @staticmethod
    def load(folder: str | Path, model: nn.Module | None = None) -> Run:
        """Read a run folder. A model that saltflat built is rebuilt; any other must be passed in.

        Weights are safetensors: loading them never executes code.
        """
        opened = RunFolder.open(folder)
        certificate = opened.read_certificate()
        weights = opened.read_tensors("weights.safetensors")
        if certificate is None or weights is None:
            raise InputError(
                "folder", str(folder), "a finished run", problem="holds a run that did not finish",
                cure="Go on with it: sf.fit(model, data, resume=folder). The whole plan's epsilon is spent either way.",
            )  # fmt: skip
        model = model if model is not None else rebuilt(opened)
        try:
            model.load_state_dict(weights)
        except RuntimeError as error:
            raise InputError(
                "model", model, "the model that was trained", problem=f"does not take the weights: {error}"
            ) from error
        facts = opened.read_json("run.json")
        facts = facts if isinstance(facts, dict) else {}  # it says how long the run took, and claims nothing
        rules, seconds = facts.get("rules"), facts.get("seconds")
        told = isinstance(seconds, int | float) and 0 <= seconds < float("inf")
        return Run(
            opened.read_plan(),
            model,
            certificate,
            opened.read_metrics(),
            opened.read_tensors("average.safetensors"),
            rules if isinstance(rules, dict) else {},
            opened.path,
            float(seconds or 0.0) if told else 0.0,
        )


def rebuilt(folder: RunFolder) -> nn.Module:
    """The model that a run trained, freshly initialised, if saltflat built it."""
    spec = folder.read_json("model.json")
    if not spec:
        raise InputError(
            "model", None, "the model that was trained", problem="is not one that saltflat can rebuild",
            cure="Pass it: Run.load(folder, model=my_model).",
        )  # fmt: skip
    return rebuilt_as(spec)


def rebuilt_as(spec: Any) -> nn.Module:
    """The model that ``model.json`` describes."""
    from saltflat.models import build

    try:
        return build(spec["name"], **spec["overrides"])
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise DamagedError(f"model.json does not describe a model ({error}).") from error
