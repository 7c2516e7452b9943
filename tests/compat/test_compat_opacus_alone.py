"""Where Opacus is not installed, and in a fresh process."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "opacus":
            raise ModuleNotFoundError(f"No module named {name!r}")
sys.meta_path.insert(0, Blocked())

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from saltflat.compat.opacus import BatchMemoryManager, ModuleValidator, PrivacyEngine, get_noise_multiplier
from saltflat.compat.opacus.accountants import RDPAccountant
from saltflat.compat.opacus.accountants.utils import get_noise_multiplier
from saltflat.compat.opacus.data_loader import DPDataLoader
from saltflat.compat.opacus.grad_sample import GradSampleModule
from saltflat.compat.opacus.layers import DPLSTM, DPMultiheadAttention
from saltflat.compat.opacus.layers.dp_rnn import DPGRU
from saltflat.compat.opacus.optimizers import DPOptimizer
from saltflat.compat.opacus.schedulers import ExponentialNoise
from saltflat.compat.opacus.utils.batch_memory_manager import BatchMemoryManager
from saltflat.compat.opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from saltflat.compat.opacus.validators import ModuleValidator

model = ModuleValidator.fix(nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)))
engine = PrivacyEngine()
model, optimizer, criterion, loader = engine.make_private_with_epsilon(
    module=model, optimizer=torch.optim.Adam(model.parameters()), criterion=nn.CrossEntropyLoss(),
    data_loader=DataLoader(TensorDataset(torch.randn(40, 3), torch.randint(0, 2, (40,))), batch_size=10),
    target_epsilon=4.0, target_delta=1e-3, epochs=2, max_grad_norm=1.0, grad_sample_mode="ghost")
for _ in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
print("spent", round(engine.get_epsilon(1e-3), 2), "opacus" in sys.modules)
"""


def test_it_works_without_opacus() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", CODE], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "spent 4.0 False"
