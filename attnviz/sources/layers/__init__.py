"""A single attention layer as a source: random, bundled, or read from a weight file."""
