"""What few public points do to samples made from them: the spiral of the public-data paper, with its picture.

Run it with more steps for the picture of the documentation: python examples/spiral.py 8000
"""

import sys
from pathlib import Path

import matplotlib
import torch
from sklearn.svm import SVC

from saltflat.public.spiral import share_along, spiral, toy_diffusion

matplotlib.use("Agg")
import matplotlib.pyplot as plt

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 1500
SIZES, COLOURS = (100, 250, 2500), ("#0072b2", "#d55e00")
test = spiral(4000, seed=1)
side = torch.linspace(-1.35, 1.35, 160)
grid = torch.cartesian_prod(side, side)
places = [(i + 0.5) / 6 for i in range(6)]
figure, panels = plt.subplots(1, 4, figsize=(15, 3.9), layout="constrained")
panels[3].plot(places, share_along(test.inputs), "k-o", label="truth")
for size, panel, style in zip(SIZES, panels, (":", "--", "-.")):
    public = spiral(size)
    labels = torch.arange(1000) % 2
    made = toy_diffusion(public, STEPS).sample(labels)
    boundary = SVC(kernel="rbf", C=1000).fit(made.numpy(), labels.numpy())
    accuracy = boundary.score(test.inputs.numpy(), test.targets.numpy())
    outside = float(share_along(made)[4:].sum() / share_along(test.inputs)[4:].sum())
    print(f"{size:>5} public points: accuracy {accuracy:.1%}, share of the sparse outside kept {outside:.2f}")
    decided = torch.from_numpy(boundary.predict(grid.numpy())).view(160, 160)
    panel.contourf(side, side, decided.T, levels=[-0.5, 0.5, 1.5], colors=COLOURS, alpha=0.18)
    for label, colour in enumerate(COLOURS):
        panel.scatter(*made[labels == label].T, s=4, c=colour, label=f"samples, class {label}")
    panel.scatter(
        *public.inputs[:250].T, s=9, c="black", marker="x", lw=0.7, label="public points (250 shown)"
    )
    panel.set(title=f"{size} public points: accuracy {accuracy:.1%}", xlim=(-1.35, 1.35), ylim=(-1.35, 1.35))
    panel.set(aspect="equal", xticks=[], yticks=[])
    panels[3].plot(places, share_along(made), style, marker=".", label=f"samples of {size}")
panels[3].set(xlabel="from the centre outwards", ylabel="share of points", title="Where the samples lie")
panels[3].legend()
figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower left", ncols=3, frameon=False)
figure.savefig("spiral.png", dpi=110)
print(f"picture in {Path('spiral.png').resolve().name}")
