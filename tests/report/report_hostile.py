"""A run whose every name tries to break out of the page that shows it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from report_runs import a_plan, audit, geometry, trained, write

SCRIPT = "<script>document.title='broken'</script>"
QUOTES = "\"'><img src=x onerror=\"document.title='broken'\">"
CLOSING = "</title></style></textarea></pre></svg><h1>broken</h1>"
MARKUP = "](javascript:alert(1)) `code` | # --- \n---\nprivate: true"


def hostile_run(folder: Path) -> Path:
    """Method, phases, notes, facts, geometry and audit all hold markup; hashes and ledger fit."""
    plan = a_plan()
    plan = replace(
        plan, method=f"sai {SCRIPT}", notes=(CLOSING,),
        phases=tuple(replace(phase, name=f"{phase.name} {QUOTES}") for phase in plan.phases),
    )  # fmt: skip
    facts = {
        "data": MARKUP,
        "model": f"{SCRIPT}{QUOTES}",
        "options": {"data": f"x; rm -rf / {QUOTES}", "epsilon": 1.0},
    }
    trained(folder / f"run {QUOTES.replace('/', '_')} &amp;", plan, facts=facts)
    (run,) = folder.iterdir()
    rows = {"name": SCRIPT, "split": "test", "rows": 3, "covered": QUOTES}
    write(run, "geometry.json", geometry(data=rows, gradient_norms={CLOSING: SCRIPT}))
    bound = {
        "epsilon_lower_bound": 0.2,
        "epsilon_certified": 1.3,
        "ceiling": 3.0,
        "trials": 5,
        "confidence": 0.9,
    }
    check = {"name": QUOTES, "passed": True, "tried": SCRIPT, "would_catch": CLOSING}
    write(run, "audit.json", audit(plan, bounds={SCRIPT: bound}, checks=[check]))
    return run
