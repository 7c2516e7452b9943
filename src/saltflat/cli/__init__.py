"""The command line: one file a command, each loaded only when it is called."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """The entry point of the command ``saltflat``."""
    try:  # Ctrl-C may come before the first line of ours is read
        from saltflat.cli.app import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()
