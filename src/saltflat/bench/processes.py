"""Ask a module of the bench something in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

# A process that takes longer than this hangs: the largest one needs minutes on a slow machine.
LONGEST_SECONDS = 3600


class FailedProcessError(RuntimeError):
    """A process that gave no answer; the message is the last that it said."""


def answer_of(module: str, spec: Mapping[str, Any]) -> Any:
    """What ``python -m module`` answers to a specification: the last line it prints, as JSON."""
    command = [sys.executable, "-m", module, json.dumps(spec)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_SECONDS, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"ended with code {done.returncode}"]
        raise FailedProcessError(said[-1])
    return json.loads(done.stdout.strip().splitlines()[-1])
