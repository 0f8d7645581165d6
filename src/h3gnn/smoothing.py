"""Temporary."""

from h3gnn.encoder.readout import LIMIT  # noqa: F401
