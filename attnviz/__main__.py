"""``python -m attnviz``."""

from attnviz.cli.main import main

if __name__ == "__main__":
    main()
