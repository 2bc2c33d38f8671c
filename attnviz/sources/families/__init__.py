"""Our own small engine for the common families of models: numpy, one readable file each.

What lives here: config and weights → ``LayerHeads``, layer by layer, without torch and without
``transformers``. What does not: models of any other kind (``sources.models``), and numbers above
q, k, v (``core``). A model runs here only where ``proof`` compared it with the library.
"""
