"""All of them under one name."""

from h3gnn.encoder.cuda.attention import mix_tokens
from h3gnn.encoder.cuda.block import fuse
from h3gnn.encoder.cuda.rows import activate, add_bias, mask_rows
from h3gnn.encoder.cuda.sparse import at_places, multiply
from h3gnn.encoder.cuda.weights import adam, follow, is_large

__all__ = [
    "activate",
    "adam",
    "add_bias",
    "at_places",
    "follow",
    "fuse",
    "is_large",
    "mask_rows",
    "mix_tokens",
    "multiply",
]
