"""Fresh interpreters that a test starts see the broken file too."""

import os

if os.environ.get("ATTNVIZ_MUTANT"):
    import sys

    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    import breaking

    sys.path.pop(0)
    breaking.install_from_environment()
