"""``python -m saltflat`` is the command line."""

from saltflat.cli import main

try:
    main()
finally:
    # Ctrl-C inside text that is executed, as scipy writes it for each distribution, makes CPython end a `-m` program
    # by the signal although the interrupt was handled. Executing any text takes that back: the exit code is ours.
    exec("")
