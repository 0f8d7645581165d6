"""Kernels of our own for CUDA devices, compiled by Triton: importing this needs it."""

from h3gnn.encoder.cuda.attention import mix_tokens
from h3gnn.encoder.cuda.block import fuse
from h3gnn.encoder.cuda.rows import activate, mask_rows
from h3gnn.encoder.cuda.sparse import Pieces, at_places, cut_long_rows, multiply

__all__ = ["Pieces", "activate", "at_places", "cut_long_rows", "fuse", "mask_rows", "mix_tokens", "multiply"]
