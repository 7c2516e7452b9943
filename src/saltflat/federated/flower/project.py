"""A Flower app as a folder: one pyproject.toml that names our apps and holds the job. For `flwr run`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tomli_w

from saltflat import __version__
from saltflat.errors import InputError
from saltflat.federated.flower.job import Job

HOME = "saltflat.federated.flower"


def write_project(folder: str | Path, job: Job) -> Path:
    """Write the app of a job into a new folder; returns the folder.

    The code is that of the installed saltflat, on the server's machine and on every node; the folder holds the
    settings. It holds no rows.
    """
    where = Path(folder)
    try:
        if where.exists() and (not where.is_dir() or any(where.iterdir())):
            raise InputError(
                "app", str(where), "a new or empty folder for the Flower app", problem="is there already"
            )
        where.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            "app", str(where), "a folder that can be written to",
            problem=f"cannot be made ({error.strerror or error})",
        ) from error  # fmt: skip
    about: dict[str, Any] = {
        "project": {
            "name": "saltflat-run",
            "version": "1.0.0",
            "description": f"A run of saltflat {__version__} over clients",
            "license": "Apache-2.0",
            "dependencies": [f"saltflat[federated]=={__version__}"],
        },
        "tool": {
            "flwr": {
                "app": {
                    "publisher": "saltflat",
                    "components": {
                        "serverapp": f"{HOME}.server_app:app",
                        "clientapp": f"{HOME}.client_app:app",
                    },
                    "config": job.config(),
                }
            }
        },
    }
    (where / "pyproject.toml").write_text(tomli_w.dumps(about), encoding="utf-8")
    (where / "README.md").write_text(README, encoding="utf-8")
    return where


README = """# A run of saltflat on Flower

Start it with `flwr run . NAME --stream`, where NAME is a SuperLink of your Flower configuration. The words under
`[tool.flwr.app.config]` can be set anew: `flwr run . NAME --run-config "out='/srv/runs/first'"`.
"""
