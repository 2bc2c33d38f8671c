"""Attention over texts of any length: exact figures, nothing L × L ever held."""
