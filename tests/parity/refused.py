"""Architectures that neither way of reading gives exactly: they are refused."""

from __future__ import annotations

from architectures import BART, Architecture, sizes

REFUSED = (
    Architecture(
        "Mamba",
        "MambaConfig",
        {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8},
        features="no softmax attention at all",
    ),
    Architecture("FNet", "FNetConfig", sizes(), features="no softmax attention at all"),
    Architecture(
        "Longformer",
        "LongformerConfig",
        sizes(attention_window=4, sep_token_id=2),
        features="scores in bands",
    ),
    Architecture(
        "LED",
        "LEDConfig",
        {
            **BART,
            "max_encoder_position_embeddings": 64,
            "max_decoder_position_embeddings": 64,
            "attention_window": 4,
        },
        features="scores in bands",
    ),
    Architecture(
        "BigBird",
        "BigBirdConfig",
        sizes(attention_type="block_sparse", block_size=2),
        features="scores in blocks",
    ),
    Architecture(
        "ProphetNet",
        "ProphetNetConfig",
        {
            "vocab_size": 99,
            "hidden_size": 32,
            "encoder_ffn_dim": 48,
            "num_encoder_layers": 2,
            "num_encoder_attention_heads": 4,
            "decoder_ffn_dim": 48,
            "num_decoder_layers": 2,
            "num_decoder_attention_heads": 4,
            "max_position_embeddings": 64,
        },
        features="n-gram streams",
    ),
    Architecture(
        "Reformer",
        "ReformerConfig",
        {
            "vocab_size": 99,
            "hidden_size": 32,
            "num_attention_heads": 4,
            "attention_head_size": 8,
            "feed_forward_size": 48,
            "attn_layers": ["lsh", "local"],
            "axial_pos_shape": [8, 8],
            "axial_pos_embds_dim": [16, 16],
            "lsh_attn_chunk_length": 8,
            "local_attn_chunk_length": 8,
            "max_position_embeddings": 64,
            "is_decoder": True,
        },
        features="hashed keys",
    ),
    Architecture(
        "RWKV",
        "RwkvConfig",
        {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "context_length": 64},
        features="no softmax attention at all",
    ),
)
"""Text models that are refused, and why."""
