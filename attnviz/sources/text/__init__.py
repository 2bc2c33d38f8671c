"""Texts cut into tokens: tokenizers, labels, long texts."""
