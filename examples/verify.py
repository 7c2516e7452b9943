"""Verify a run: ε again from its ledger, and what happens when a single byte changes."""

from pathlib import Path

import saltflat as sf

data = sf.data.load("digits")
plan = sf.plans.dp_sgd(epsilon=3.0, delta=1e-4, population=1437, batch_size=256, steps=10)
folder = Path("runs/verified")
sf.fit(sf.models.build("mlp"), data.train, plan, out=folder, progress=False)

found = sf.verify(folder)
print(found)

# Keep this elsewhere: it tells if all files were ever written anew, so that they fit together again.
kept = found.certificate_hash
assert sf.verify(folder, head=kept).passed

# One bit of one weight.
weights = folder / "weights.safetensors"
content = bytearray(weights.read_bytes())
content[-1] ^= 1
weights.write_bytes(content)
print(f"after one bit was changed: {', '.join(sf.verify(folder).failed)} failed")
