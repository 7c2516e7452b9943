"""``python -m saltflat`` is the command line."""

from saltflat.cli import main

main()
