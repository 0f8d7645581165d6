"""The baselines of the comparison tables."""

from __future__ import annotations

from typing import Any

import torch

from h3gnn.experiments.tables.cells import Cell
from h3gnn.experiments.tables.lines import Line
from h3gnn.experiments.tables.scope import Scope
from h3gnn.graphs.graph import Graph

METHODS: dict[str, str | None] = {}
"""Baselines by name, and what the paper calls them."""


def method_line(scope: Scope, method: str, graph: str) -> Line:
    """Return the line of a baseline: one cell with all its seeds."""
    raise NotImplementedError


def run_baseline(cell: Cell, graph: Graph, device: torch.device) -> dict[str, Any]:
    """Run a baseline under `validation`."""
    raise NotImplementedError
