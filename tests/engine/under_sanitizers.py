"""The loops in C under AddressSanitizer and UndefinedBehaviorSanitizer: ``make sanitize``.

They are compiled anew, into a cache of their own, by a compiler that adds the checks. A read or write beyond a tensor,
or arithmetic that C leaves undefined, then ends the tests of these loops with a report. Needs gcc on Linux.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
CHECKED = [
    HERE / f"test_engine_{name}.py"
    for name in ("native", "winograd", "loops", "layers", "architectures", "lanes")
]
COMPILER = '#!/bin/sh\nexec gcc "$@" -fsanitize=address,undefined -fno-omit-frame-pointer -g -O1\n'


def main() -> int:
    """Run the tests; their exit code."""
    with tempfile.TemporaryDirectory() as folder:
        compiler = Path(folder) / "cc"
        compiler.write_text(COMPILER, encoding="utf-8")
        compiler.chmod(0o700)
        checked = {
            "CC": str(compiler),
            "XDG_CACHE_HOME": folder,
            # Python is not compiled with them, so they are loaded before it
            "LD_PRELOAD": ":".join(runtime(name) for name in ("libasan.so", "libubsan.so")),
            "ASAN_OPTIONS": "detect_leaks=0",  # of Python, which frees little at its end
            "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
        }
        told = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "not slow and not alone"]
        # the sanitizers bring an allocator of their own, which fetches memory as it likes
        told += [*map(str, CHECKED), "-k", "not fetched_again", "--capture=no"]
        code = subprocess.run(told, env=os.environ | checked, check=False).returncode
        if not list(Path(folder).glob("saltflat/native/*.so")):
            print("nothing was compiled, so nothing was checked", file=sys.stderr)
            return 1
        return code


def runtime(name: str) -> str:
    """Where gcc keeps a sanitizer's library."""
    found = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return found.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
