"""What a model of transformers computes inside its attention, handed on as ``LayerHeads``."""
