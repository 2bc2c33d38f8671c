"""Measurements beside their baselines, in one run: ``make bench``. Ratios count, not seconds."""
