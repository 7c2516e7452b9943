"""What scale does to privacy and to time: python benchmarks/scale/simulate.py [--pictures docs/pictures]

Noise and ε come from the accountant that every plan uses (privacy loss distributions), for populations from a
thousand to ten billion. Time comes from the model in cost.py, whose constants benchmarks/ranks/speed.py measured.
Writes benchmarks/scale/results.json, and the pictures of docs/scale.md from it.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import cost

from saltflat.accounting import COARSE, SampledGaussian, epsilon, least_scale

HERE = Path(__file__).resolve().parent
POPULATIONS = [10**k for k in range(3, 11)]
BUDGET, STEPS = 2.0, 2_000


def delta_for(population: float) -> float:
    """A tenth of one over the population: well below the chance of naming a row at random."""
    return 0.1 / population


KNOWN = HERE / "noise.json"
"""Every noise multiplier that was computed: a simulation that was stopped goes on where it was."""


def known() -> dict[str, float]:
    """What is in the file already."""
    held: dict[str, float] = json.loads(KNOWN.read_text(encoding="utf-8")) if KNOWN.exists() else {}
    return held


def noise(population: int, batch: int, steps: int, budget: float, grid: float = COARSE) -> float:
    """The least noise multiplier."""
    held, key = known(), f"{population} {batch} {steps} {budget} {grid}"
    if key not in held:
        held[key] = least_scale(
            lambda scale: [SampledGaussian(scale, batch / population, steps)],
            budget,
            delta_for(population),
            grid=grid,
        )
        KNOWN.write_text(json.dumps(held, indent=0) + "\n", encoding="utf-8")
    return held[key]


def batches(population: int) -> list[int]:
    """Powers of sixteen from 256 to the population, no smaller than a millionth of it, and the population itself."""
    return [*(16**k for k in range(2, 9) if population / 1e6 < 16**k < population), population]


def noise_by_batch() -> list[dict[str, Any]]:
    """σ and σ/B for every population and batch size, at one budget and number of steps."""
    found = []
    for population in POPULATIONS:
        for batch in batches(population):
            sigma = noise(population, batch, STEPS, BUDGET)
            found.append({"population": population, "batch": batch, "sigma": sigma, "noise": sigma / batch})
    return found


def knees(rows: list[dict[str, Any]], factor: float = 1.5) -> list[dict[str, Any]]:
    """The batch from which on a larger one takes away less than a third of the noise, however large it is."""
    found = []
    for population in POPULATIONS:
        mine = [row for row in rows if row["population"] == population]
        floor = min(row["noise"] for row in mine)
        knee = next(row for row in mine if row["noise"] <= factor * floor)
        found.append(
            {"population": population, "floor": floor, "batch": knee["batch"], "sigma": knee["sigma"]}
        )
    return found


def epsilon_by_population() -> list[dict[str, Any]]:
    """What one fixed training costs, the more rows it is drawn from the less."""
    found = []
    for batch, sigma in ((1_024, 1.0), (16_384, 1.0), (262_144, 1.0), (16_384, 0.7)):
        for population in (p for k in range(3, 11) for p in (10**k, 3 * 10**k)):
            if not batch <= population <= 10**10:
                continue
            spent = epsilon(
                [SampledGaussian(sigma, batch / population, STEPS)], delta_for(population), grid=COARSE
            )
            found.append({"population": population, "batch": batch, "sigma": sigma, "epsilon": spent})
    return found


def noise_by_steps() -> list[dict[str, Any]]:
    """More steps at one budget: σ/B grows with the square root of them."""
    found = []
    for population, batch in ((10**5, 4_096),):
        for steps in (100, 1_000, 10_000):
            sigma = noise(population, batch, steps, BUDGET)
            found.append({"population": population, "batch": batch, "steps": steps, "noise": sigma / batch})
    return found


def against_sampling(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The batch at which privacy's noise is as long as the noise of sampling: σ √(d/B) = 1."""
    found = []
    for population in (10**5, 10**8, 10**10):
        for parameters in (10**4, 10**6, 10**8):
            for row in rows:
                if row["population"] == population:
                    ratio = row["sigma"] * math.sqrt(parameters / row["batch"])
                    found.append(row | {"parameters": parameters, "ratio": ratio})
    return found


def speeds() -> list[dict[str, Any]]:
    """Efficiency over the number of ranks, by model, link and batch."""
    held = json.loads(cost.MEASURED.read_text(encoding="utf-8"))
    constants, link = cost.Constants.measured(), cost.Link.measured()
    found = []
    for work in held["workloads"]:
        rate = work["rows_a_second"]["one thread"]
        for batch in (4_096, 65_536, 1_048_576):
            for ranks in (2**k for k in range(13)):
                parts = cost.step(ranks, batch, work["parameters"], 10**7, rate, link, constants)
                found.append({"model": work["model"], "batch": batch, "ranks": ranks, **parts})
    return found


def large_runs(found: dict[str, Any]) -> list[dict[str, Any]]:
    """What a run at the knee takes, for populations up to internet size."""
    constants, secure = cost.Constants.measured(), cost.Constants.measured("secure")
    held = json.loads(cost.MEASURED.read_text(encoding="utf-8"))
    rates = {work["model"]: work["rows_a_second"]["one thread"] for work in held["workloads"]}
    rows = []
    for knee in found["knees"]:
        batch, population = knee["batch"], knee["population"]
        rank = rates["cnn-selu"]
        ranks = cost.useful_ranks(batch, 550_570, population, rank, cost.Link.measured(), constants)
        rows.append(
            {
                "population": population,
                "batch": batch,
                "sigma": knee["sigma"],
                "rows_computed": batch * STEPS,
                "passes": batch * STEPS / population,
                "core_hours": batch * STEPS / rank / 3600,
                "useful_ranks": ranks,
                "useful_ranks_at_20000_rows_a_second": cost.useful_ranks(
                    batch, 550_570, population, 20_000, cost.ETHERNET_100, constants
                ),
                "sampling_seconds_fast": population * constants.sampling * 1e-9,
                "sampling_seconds_secure": population * secure.sampling * 1e-9,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pictures", type=Path)
    parser.add_argument(
        "--keep", action="store_true", help="take noise and ε from the results that are there"
    )
    arguments = parser.parse_args()
    held = HERE / "results.json"
    if arguments.keep:
        found: dict[str, Any] = json.loads(held.read_text(encoding="utf-8"))
    else:
        started = time.perf_counter()
        rows = noise_by_batch()
        found = {
            "budget": BUDGET,
            "steps": STEPS,
            "delta": "0.1 / population",
            "noise_by_batch": rows,
            "epsilon_by_population": epsilon_by_population(),
            "noise_by_steps": noise_by_steps(),
        }
        print(f"{time.perf_counter() - started:.0f} s for the accountant")
    # what follows from it takes no time
    rows = found["noise_by_batch"]
    found |= {"knees": knees(rows), "against_sampling": against_sampling(rows)}
    if cost.MEASURED.exists():
        found |= {"speeds": speeds(), "large_runs": large_runs(found)}
    held.write_text(json.dumps(found, indent=0) + "\n", encoding="utf-8")
    print(f"wrote {held}")
    if arguments.pictures is not None:
        import pictures

        for path in pictures.draw(found, arguments.pictures):
            print(f"wrote {path}")


if __name__ == "__main__":
    main()
