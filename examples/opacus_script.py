"""A training script written for Opacus, with one import changed.

Run with: python examples/opacus_script.py
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import saltflat as sf

# was: from opacus import PrivacyEngine
from saltflat.compat.opacus import PrivacyEngine

torch.manual_seed(0)
digits = sf.data.load("digits")
train = TensorDataset(digits.train.inputs.flatten(1), digits.train.targets)
model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
loader = DataLoader(train, batch_size=128, shuffle=True)

privacy_engine = PrivacyEngine()
model, optimizer, loader = privacy_engine.make_private_with_epsilon(
    module=model,
    optimizer=optimizer,
    data_loader=loader,
    target_epsilon=3.0,
    target_delta=1e-5,
    epochs=20,
    max_grad_norm=0.5,
)

criterion = nn.CrossEntropyLoss()
for _ in range(20):
    for images, labels in loader:
        optimizer.zero_grad()
        criterion(model(images), labels).backward()
        optimizer.step()

model.eval()
with torch.no_grad():
    guesses = model(digits.test.inputs.flatten(1)).argmax(1)
accuracy = (guesses == digits.test.targets).float().mean()
print(f"noise multiplier {optimizer.noise_multiplier}, accuracy {accuracy:.3f}")
print(f"spent ε = {privacy_engine.get_epsilon(1e-5):.3f} of 3")
