"""`PrivacyEngine`: makes a model, an optimizer and a loader private, by Opacus's calls."""

from __future__ import annotations

import os
import warnings
from typing import IO, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from saltflat.compat.opacus.accountants import create_accountant
from saltflat.compat.opacus.accountants.utils import calibrated
from saltflat.compat.opacus.accounts import FixedBatchesAccount, PoissonAccount, certified
from saltflat.compat.opacus.averages import Averager
from saltflat.compat.opacus.checkpoints import check_plain
from saltflat.compat.opacus.connecting import (
    check_same_parameters,
    connect,
    expected_batch_size,
    private_loader,
    recorded,
)
from saltflat.compat.opacus.methods import FlatSearch, Method
from saltflat.compat.opacus.optimizers import DPOptimizer, get_optimizer_class
from saltflat.compat.opacus.over_ranks import is_spread, same_weights
from saltflat.compat.opacus.second_dimension import tell
from saltflat.compat.opacus.unused import UseCheck
from saltflat.compat.opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from saltflat.compat.opacus.validators import ModuleValidator
from saltflat.compat.opacus.validators.errors import UnsupportedModuleError
from saltflat.errors import InputError, PrivacyWarning, is_number
from saltflat.mechanism.streams import CryptographicStream

File = str | os.PathLike[str] | IO[bytes]


class PrivacyEngine:
    """Opacus's `PrivacyEngine` on saltflat's engine, noise and accounting.

    Guarantees: under zero-out adjacency, that is with the size of the data set public, the releases of
    ``optimizer.step()`` together are (`get_epsilon` (δ), δ)-private, if the batches come from the loader that
    `make_private` returns. Each release is recorded before its noise is drawn.

    ``accountant`` is ``"prv"`` (tight, by privacy loss distributions), ``"rdp"`` or ``"gdp"``. ``secure_mode``
    draws sampling and noise from a cryptographic stream.

    >>> from torch.utils.data import TensorDataset
    >>> model = nn.Linear(3, 2)
    >>> engine = PrivacyEngine(secure_mode=True)
    >>> model, optimizer, loader = engine.make_private(
    ...     module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    ...     data_loader=DataLoader(TensorDataset(torch.randn(64, 3), torch.zeros(64).long()), batch_size=8),
    ...     noise_multiplier=1.0, max_grad_norm=1.0)
    >>> for x, y in loader:
    ...     optimizer.zero_grad()
    ...     nn.CrossEntropyLoss()(model(x), y).backward()
    ...     optimizer.step()
    >>> engine.accountant.history, round(engine.get_epsilon(delta=1e-2), 2)
    ([(1.0, 0.125, 8)], 1.03)
    """

    def __init__(self, *, accountant: str = "prv", secure_mode: bool = False) -> None:
        self.accountant = create_accountant(mechanism=accountant)
        self.secure_mode = secure_mode
        self.secure_rng = CryptographicStream.fresh() if secure_mode else None
        self.dataset: Any = None  # only to notice another data set
        self._accounts: list[PoissonAccount | FixedBatchesAccount] = []
        self._search: FlatSearch | None = None
        self._averager: Averager | None = None
        self._use_checks: list[UseCheck] = []
        self._seeded = False
        self._ranks = 1

    # --- checks -----------------------------------------------------------------------------------

    def is_compatible(
        self, *, module: nn.Module, optimizer: Optimizer | None = None, data_loader: Any = None
    ) -> bool:
        """Whether a model can be trained privately as it is."""
        return not ModuleValidator.hindrances(module)

    def validate(
        self, *, module: nn.Module, optimizer: Optimizer | None = None, data_loader: Any = None
    ) -> None:
        """Raise `UnsupportedModuleError` if a model cannot be trained privately as it is."""
        hindrances = ModuleValidator.hindrances(module)
        if hindrances:
            raise UnsupportedModuleError(hindrances)

    @classmethod
    def get_compatible_module(cls, module: nn.Module) -> nn.Module:
        """A copy of the model that can be trained privately."""
        return ModuleValidator.fix_and_validate(module)

    # --- making things private --------------------------------------------------------------------

    def make_private(
        self,
        *,
        module: nn.Module,
        optimizer: Optimizer,
        criterion: Any = None,
        data_loader: DataLoader[Any],
        noise_multiplier: float,
        max_grad_norm: float | list[float],
        batch_first: bool = True,
        loss_reduction: str = "mean",
        poisson_sampling: bool = True,
        clipping: str = "flat",
        noise_generator: torch.Generator | None = None,
        grad_sample_mode: str = "hooks",
        wrap_model: bool = True,
        rand_on_empty: bool = False,
        method: str = "dp-sgd",
        rho: float = 0.03,
        switch: float | int = 0.4,
        noise_ratio: float = 1.5,
        steps: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """A private module, optimizer and loader: ``(module, optimizer, data_loader)``.

        The modes of ``grad_sample_mode`` with "ghost" in their names return ``(module, optimizer, criterion,
        data_loader)``, as in Opacus; all modes are the one engine. With ``wrap_model=False`` the model stays as it is,
        and the first value is an object with ``cleanup()``. ``method="dp-sat"`` or ``"sai"`` look for flat minima, at
        no cost in privacy (see `Method`; ``sai`` needs ``steps``); with ``+ema`` or ``+swa`` the weights are averaged:
        `average`.

        A module in `DifferentiallyPrivateDistributedDataParallel`, in torch's ``DistributedDataParallel`` or from
        `FSDP2Wrapper` is trained by all ranks of the process group together. Every rank calls this.
        """
        if noise_generator is not None and self.secure_mode:
            raise ValueError("Passing seed is prohibited in secure mode")
        check_same_parameters(module, optimizer)
        distributed = is_spread(module)
        if distributed:
            same_weights(module)
            self._ranks = dist.get_world_size()
        chosen = Method.by_name(method, rho=rho, switch=switch, noise_ratio=noise_ratio)
        self.validate(module=module)
        for norm in max_grad_norm if isinstance(max_grad_norm, list) else [max_grad_norm]:
            if not is_number(norm) or not norm > 0:
                raise InputError("max_grad_norm", norm, "max_grad_norm > 0")
        wrapped = recorded(module, grad_sample_mode, wrap_model, batch_first, loss_reduction, max_grad_norm)
        if poisson_sampling:
            wrapped.forbid_grad_accumulation()
        self._notice(data_loader.dataset)
        loader = private_loader(
            data_loader, poisson_sampling, distributed, self.secure_rng, batch_first, rand_on_empty
        )
        tell(wrapped.recorder, loader)
        sample_rate = 1 / len(loader)
        private = get_optimizer_class(clipping, distributed, grad_sample_mode)(
            optimizer.original_optimizer if isinstance(optimizer, DPOptimizer) else optimizer,
            noise_multiplier=noise_multiplier,
            max_grad_norm=max_grad_norm,  # type: ignore[arg-type]
            expected_batch_size=expected_batch_size(loader, sample_rate, self._ranks if distributed else 1),
            loss_reduction=loss_reduction,
            generator=self.secure_rng if self.secure_mode else noise_generator,
            secure_mode=self.secure_mode,
            **kwargs,
        )
        self._search = connect(wrapped, private, chosen, steps) or self._search
        self._averager = private.averager or self._averager
        if private.use_check is not None:
            self._use_checks.append(private.use_check)
        kind = PoissonAccount if poisson_sampling else FixedBatchesAccount
        account = kind(self.accountant, loader, sample_rate)
        private.account = account
        self._accounts.append(account)
        self._seeded = self._seeded or noise_generator is not None
        if "ghost" in grad_sample_mode:
            loss = nn.CrossEntropyLoss(reduction=loss_reduction) if criterion is None else criterion
            by_example = DPLossFastGradientClipping(wrapped, private, loss, loss_reduction)
            return wrapped, private, by_example, loader
        return wrapped, private, loader

    def make_private_with_epsilon(
        self,
        *,
        module: nn.Module,
        optimizer: Optimizer,
        criterion: Any = None,
        data_loader: DataLoader[Any],
        target_epsilon: float,
        target_delta: float,
        epochs: int,
        max_grad_norm: float | list[float],
        batch_first: bool = True,
        loss_reduction: str = "mean",
        poisson_sampling: bool = True,
        clipping: str = "flat",
        noise_generator: torch.Generator | None = None,
        grad_sample_mode: str = "hooks",
        wrap_model: bool = True,
        method: str = "dp-sgd",
        rho: float = 0.03,
        switch: float | int = 0.4,
        noise_ratio: float = 1.5,
        **kwargs: Any,
    ) -> Any:
        """`make_private` with the noise at which so many epochs stay within the budget.

        Guarantees: `get_epsilon` after these epochs is at most ``target_epsilon``. Fixed batches
        (``poisson_sampling=False``) get the noise that they need, which is much more.
        """
        if len(self.accountant) > 0:
            warnings.warn(
                "You're calling make_private_with_epsilon with non-zero privacy budget already spent. Returned "
                "noise_multiplier assumes zero starting point, so your overall privacy budget will be higher.",
                PrivacyWarning,
                stacklevel=2,
            )  # fmt: skip
        chosen = Method.by_name(method, rho=rho, switch=switch, noise_ratio=noise_ratio)
        batches = len(data_loader)
        steps = int(epochs * batches + 1e-6)
        if steps < 1:
            raise InputError(
                "epochs", epochs, "at least one step", cure="Its noise would be that of no step at all."
            )

        def history(sigma: float) -> list[tuple[float, float, int]]:
            if poisson_sampling:
                return chosen.history(sigma, 1 / batches, steps)
            whole = -(-steps // batches)  # passes over the data, a started one included
            noise = [noise for noise, _, _ in chosen.history(sigma, 1.0, steps)]
            # In a pass with both noises, either may be the one that an example meets: both are counted.
            return [(each, 1.0, whole) for each in noise]

        own: dict[str, Any] = {"alphas": kwargs.pop("alphas")} if "alphas" in kwargs else {}
        if "epsilon_tolerance" in kwargs:
            own["tolerance"] = kwargs.pop("epsilon_tolerance")
        sigma = calibrated(
            history, target_epsilon, target_delta, accountant=self.accountant.mechanism(), **own
        )
        return self.make_private(
            module=module,
            optimizer=optimizer,
            criterion=criterion,
            data_loader=data_loader,
            noise_multiplier=sigma,
            max_grad_norm=max_grad_norm,
            batch_first=batch_first,
            loss_reduction=loss_reduction,
            poisson_sampling=poisson_sampling,
            clipping=clipping,
            noise_generator=noise_generator,
            grad_sample_mode=grad_sample_mode,
            wrap_model=wrap_model,
            method=method,
            rho=rho,
            switch=switch,
            noise_ratio=noise_ratio,
            steps=steps,
            **kwargs,
        )

    def _notice(self, dataset: Any) -> None:
        """Warn of another data set than the one that this engine accounts for."""
        if self.dataset is None:
            self.dataset = dataset
        elif self.dataset is not dataset:
            warnings.warn(
                f"PrivacyEngine detected new dataset object. Was: {self.dataset}, got: {dataset}. Privacy accounting "
                "works per dataset, please initialize new PrivacyEngine if you're using different dataset. You can "
                "ignore this warning if two datasets above represent the same logical dataset",
                PrivacyWarning,
                stacklevel=3,
            )  # fmt: skip

    # --- accounting -------------------------------------------------------------------------------

    def get_epsilon(self, delta: float) -> float:
        """The ε at δ of all releases so far. Reading it changes nothing."""
        return self.accountant.get_epsilon(delta)

    def certificate(self, delta: float) -> dict[str, Any]:
        """What is claimed, under which assumptions, and what speaks against it: plain values, for a file.

        It rests on this process: nothing was written to a ledger on disk. `saltflat.fit` gives certificates
        that others can verify.
        """
        return certified(self, delta)

    @property
    def average(self) -> dict[str, torch.Tensor] | None:
        """The averaged weights with ``method="…+ema"`` or ``"…+swa"``, by their names in the plain model; else None.

        Post-processing of releases: costs nothing.
        """
        return None if self._averager is None else self._averager.average

    # --- checkpoints ------------------------------------------------------------------------------

    def save_checkpoint(
        self, *, path: File, module: nn.Module, optimizer: DPOptimizer | None = None, noise_scheduler: Any = None,
        grad_clip_scheduler: Any = None, checkpoint_dict: dict[str, Any] | None = None,
        module_state_dict_kwargs: dict[str, Any] | None = None, torch_save_kwargs: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Save the state of module, optimizer and accountant: tensors and plain values, no code."""
        found = dict(checkpoint_dict or {})
        found["module_state_dict"] = module.state_dict(**(module_state_dict_kwargs or {}))
        found["privacy_accountant_state_dict"] = self.accountant.state_dict()
        for key, part in self._parts(optimizer, noise_scheduler, grad_clip_scheduler).items():
            if part is not None:
                found[key] = part.state_dict()
        check_plain(found)
        torch.save(found, path, **(torch_save_kwargs or {}))

    def load_checkpoint(
        self, *, path: File, module: nn.Module, optimizer: DPOptimizer | None = None, noise_scheduler: Any = None,
        grad_clip_scheduler: Any = None, module_load_dict_kwargs: dict[str, Any] | None = None,
        torch_load_kwargs: dict[str, Any] | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Load what `save_checkpoint`, here or in Opacus, saved. Loading never executes code from the file."""
        options = {**(torch_load_kwargs or {}), "weights_only": True}
        checkpoint: dict[str, Any] = torch.load(path, **options)
        module.load_state_dict(checkpoint["module_state_dict"], **(module_load_dict_kwargs or {}))
        self.accountant.load_state_dict(checkpoint["privacy_accountant_state_dict"])
        for key, part in self._parts(optimizer, noise_scheduler, grad_clip_scheduler).items():
            saved = checkpoint.pop(key, {})
            if part is not None and saved:
                part.load_state_dict(saved)
            elif key == "optimizer_state_dict" and (part is not None) != bool(saved):
                warnings.warn(
                    f"optimizer_state_dict has {len(saved)} items but optimizer is "
                    f"{'' if part is not None else 'not '}provided.", UserWarning, stacklevel=2,
                )  # fmt: skip
        return checkpoint

    def _parts(self, optimizer: Any, noise_scheduler: Any, grad_clip_scheduler: Any) -> dict[str, Any]:
        """What a checkpoint may hold beside module and accountant, by its key."""
        return {
            "optimizer_state_dict": optimizer,
            "noise_scheduler_state_dict": noise_scheduler,
            "grad_clip_scheduler_state_dict": grad_clip_scheduler,
            "saltflat_method_state_dict": self._search,
            "saltflat_average_state_dict": self._averager,
        }
