"""Where runs lie, for those who name a folder that holds none. No torch: `verify` needs none."""

from __future__ import annotations

from pathlib import Path


def what_instead(path: Path) -> str:
    """What to do where a folder holds no run: name the runs that lie in it, if there are any."""
    inside = sorted(str(plan.parent) for plan in path.glob("*/plan.json")) if path.is_dir() else []
    if inside:
        more = f" and {len(inside) - 3} more" if len(inside) > 3 else ""
        return f"It is a folder of runs. Name one of them: {', '.join(inside[:3])}{more}."
    return "Without plan.json nothing was released yet: start the run again."
