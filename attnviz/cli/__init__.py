"""The command line: one thin file per command, options that mean the same everywhere.

The entry point is ``main.main``; it loads nothing heavy: ``--help``, completion and usage errors load
neither numpy nor torch nor matplotlib. Nothing is computed here.
"""
