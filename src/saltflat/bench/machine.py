"""What a measurement depends on besides its settings: the machine, the versions, the code itself."""

from __future__ import annotations

import hashlib
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import saltflat

PEERS = ("opacus", "jax-privacy", "jax")


def facts() -> dict[str, Any]:
    """Processor, threads and versions. Numbers that were measured under other facts are not comparable."""
    import torch

    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "saltflat": saltflat.__version__,
        "code": code_hash(),
        "peers": {package: version_of(package) for package in PEERS},
    }


def processor() -> str:
    """The processor's name as the system gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def version_of(package: str) -> str | None:
    """The installed version of a package, or None.

    >>> version_of("no-such-package-at-all") is None
    True
    """
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def code_hash() -> str:
    """Twelve digits that change when any file of saltflat does, so that kept results are never those of old code."""
    root = Path(saltflat.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(path for path in root.rglob("*") if path.suffix in (".py", ".c", ".h")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def load() -> float | None:
    """How busy the machine is: the mean number of running processes over the last minute."""
    try:
        return round(os.getloadavg()[0], 2)
    except (OSError, AttributeError):
        return None
