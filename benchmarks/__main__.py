"""Run every benchmark: ``python -m benchmarks``."""

from benchmarks import startup

startup.main()
