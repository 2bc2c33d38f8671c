"""What is said about weights: figures, patterns, the most specific head, intervals, comparisons."""
