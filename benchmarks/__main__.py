"""Run every benchmark, or those named: ``python -m benchmarks [NAME …] [-- OPTIONS]``.

Each is a module of this folder with a ``main``, run in a process of its own.
"""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from pathlib import Path


def main() -> None:
    """Run the benchmarks in the order of their names; exit with 1 if one passes a limit."""
    names = [m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)])]
    names.remove("__main__") if "__main__" in names else None
    arguments = sys.argv[1:]
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    chosen, options = arguments[:cut] or names, arguments[cut + 1 :]
    unknown = [name for name in chosen if name not in names]
    if unknown:
        sys.exit(f"no benchmark '{unknown[0]}': choose from {', '.join(names)}")
    codes = []
    for name in chosen:
        print(f"\n== {name} ==", flush=True)
        command = [sys.executable, "-m", f"benchmarks.{name}", *options]
        codes.append(subprocess.run(command, check=False).returncode)
    sys.exit(int(any(codes)))


if __name__ == "__main__":
    main()
