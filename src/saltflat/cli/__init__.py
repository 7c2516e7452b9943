"""The command line: one file a command, each loaded only when it is called."""

from saltflat.cli.app import main

__all__ = ["main"]
