"""Formats: one file each. A format has

- ``SUFFIXES``: the file endings that choose it, for example ``(".json",)``;
- ``IS_BINARY``: whether it may only go to a file;
- ``render(document, screen) -> str`` (or ``bytes`` where binary);
- optionally ``TELLS_NOTICES = True``: ``render(document, screen, say)`` tells ``say`` what could
  not be shown as it is.
"""
