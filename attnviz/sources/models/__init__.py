"""Trained models from disk, in pieces: files, cards, GGUF, tokenizers, masks, capture, checks.

What lives here: one piece per file, none of which does any work on import. What does not: the
source that joins them (``transformers_``), and numbers above q, k, v (``core``).
"""
