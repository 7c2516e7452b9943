"""How flat is the minimum that a method found? Sharpness during training, spectrum, wideness."""

import torch

import saltflat as sf
from saltflat import geometry

digits = sf.data.load("digits")
settings = {"epsilon": 3.0, "delta": 1e-4, "population": 1437, "batch_size": 256, "epochs": 10}
plans = {"dp-sgd": sf.plans.dp_sgd(**settings), "dp-sat": sf.plans.dp_sat(rho=0.1, **settings)}

losses = {}
for name, plan in plans.items():
    torch.manual_seed(1)
    model = sf.models.build("mlp")
    # Test rows: exact numbers about them, which no ε covers. Private rows would need private=True, and say so.
    watch = geometry.Flatness(model, geometry.rows_of(digits, "test"), every=2.5, rows=200)
    cosines = geometry.Cosines()  # from releases alone: covered by the run's ε
    run = sf.fit(model, digits.train, plan, callbacks=[watch, cosines], progress=False)
    print(f"{name}: ε = {run.epsilon:.2f}, sharpness and loss as epochs go by ({watch.covered})")
    for row in watch.history:
        print(f"  epoch {row['epoch']:4.1f}: λ_max {row['sharpness']:6.2f}, loss {row['loss']:.3f}")
    mean = sum(row["cosine"] for row in cosines.history) / len(cosines.history)
    print(f"  cosine of successive releases, on average: {mean:.2f}")
    losses[name] = geometry.Loss(model, digits.test)

for name, loss in losses.items():
    top = geometry.eigenvalues(loss, 5)
    trace = geometry.hessian_trace(loss)
    print(
        f"{name}: λ_max {top.values[0]:.2f}, λ_max/λ_5 {top.values[0] / top.values[4]:.2f}, "
        f"trace {trace.value:.0f} ± {trace.error:.0f}"
    )

# Both along the same ten rays, to the same distance.
reach = float(losses["dp-sgd"].weights.norm()) / 2
first, second = (geometry.wideness(loss, reach=reach) for loss in losses.values())
print(f"wideness: dp-sat gains {geometry.wideness_gain(first, second):+.2f} % over dp-sgd, on one run each")
