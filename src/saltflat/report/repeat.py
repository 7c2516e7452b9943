"""How to do a run again: the command that started it, or the lines of Python that run its plan."""

from __future__ import annotations

import re
import shlex

from saltflat.errors import is_number
from saltflat.report.facts import RunFacts

FIRST = ("data", "label", "group", "model", "method")


def command(run: RunFacts) -> str | None:
    """The command line that starts the same run in a new folder; None if the run was not started by one.

    Words are quoted: a name in ``run.json`` cannot become a second command when it is pasted.
    """
    facts = run.about.get("facts")
    options = facts.get("options") if isinstance(facts, dict) else None
    if not isinstance(options, dict) or not options:
        return None
    words: list[str] = []
    for key in sorted(options, key=lambda key: FIRST.index(key) if key in FIRST else len(FIRST)):
        value = options[key]
        said = value if isinstance(value, str) else repr(value) if is_number(value) else None
        if said is None or not said.isprintable() or not re.fullmatch(r"[a-z][a-z_]*", str(key)):
            return None  # nothing that the command line stored
        words.append(f"--{key.replace('_', '-')} {shlex.quote(said)}")
    return _folded(["saltflat train", *words, f"--out {shlex.quote(f'runs/{run.name}-again')}"])


def _folded(words: list[str]) -> str:
    """A command over several lines, none of them much longer than 96 letters."""
    lines = [words[0]]
    for word in words[1:]:
        if len(lines[-1]) + len(word) > 96:
            lines.append(f"    {word}")
        else:
            lines[-1] += f" {word}"
    return " \\\n".join(lines)


def python(run: RunFacts) -> str:
    """The lines that run the same plan from Python."""
    folder = str(run.path)
    spec = (
        f"model = sf.Run.load({folder!r}).model    # or the same architecture, with new weights"
        if run.told("model") is None
        else f"model = sf.models.build({run.told('model')!r})    # or the same architecture as yours"
    )
    data = run.told("data")
    rows = f"data = sf.data.load({data!r}).train" if data else "data = ...    # the same rows"
    return "\n".join(
        [
            "import saltflat as sf",
            "",
            f"plan = sf.Plan.load({folder + '/plan.json'!r})",
            spec,
            rows,
            f"run = sf.fit(model, data, plan, out={f'runs/{run.name}-again'!r})",
        ]
    )
