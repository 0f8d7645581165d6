"""Temporary."""

from h3gnn.encoder.sparse import csr_tensor, row_pointers, to_csr, transpose_csr  # noqa: F401
from h3gnn.encoder.support import adjacency_entries  # noqa: F401
