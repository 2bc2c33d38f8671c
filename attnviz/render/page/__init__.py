"""One self-contained interactive page: q, k and v in, HTML out.

What lives here: what a page carries (``encode``), how precisely (``numbers``), its masks and
biases (``rules``), and the assembly of script, style and data (``build``); the script itself is
``js/``, one module per idea. What does not: computing q, k and v.
"""
