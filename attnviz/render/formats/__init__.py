"""Formats: one file each. A format has

- ``SUFFIXES``: the file endings that choose it, for example ``(".json",)``;
- ``IS_BINARY``: whether it may only go to a file;
- ``render(document, screen) -> str`` (or ``bytes`` where binary).
"""
