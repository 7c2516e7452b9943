"""Many clients with a few rows each: the guarantee is for everything that one client holds."""

import saltflat as sf

digits = sf.data.load("digits")
# 100 clients, each with its own mix of digits; how many there are is declared, and public.
clients = sf.federated.partition(digits.train, 100, by="dirichlet", alpha=0.6)

common = {
    "epsilon": 8.0,  # over all rounds
    "clients": 100,
    "rate": 0.3,  # a client joins a round with this probability
    "rounds": 25,
    "clip_norm": 0.5,  # of a client's whole update
    "local_epochs": 3,
    "local_batch_size": 8,
}
plans = [
    sf.plans.dp_fedavg(**common),
    sf.plans.dp_fedsam(rho=0.05, **common),  # SAM inside the client
    sf.plans.dp_fedsam_topk(rho=0.05, ratio=0.4, **common),  # and noise on 40 % of the coordinates only
    sf.plans.federated_by_name("dp-fedavg+ema", **common),  # averaged at the server
]
for plan in plans:
    run = sf.federate(sf.models.build("mlp"), clients, plan, evaluate=digits.test, progress=False)
    accuracy = run.average_accuracy or run.accuracy
    print(f"{plan.method:15} σ = {plan.phases[0].sigma:.2f}  ε = {run.epsilon:.2f}  test {accuracy:.1%}")

# The same under secure aggregation: clients add the noise themselves, and the server need not be trusted.
# It knows who takes part, so sampling hides nobody, and the same ε asks for more noise.
shared = sf.plans.dp_fedavg(**common, survivors=20)
print(f"\nshared noise    σ = {shared.phases[0].sigma:.2f} for the same ε")
print("\n" + str(run.certificate).splitlines()[0])
