"""The list of all systems: a new one is a module of this package with a `SYSTEM`, and its name here."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from h3gnn.baselines.systems import System

MODULES = (
    "mlp",
    "gcn",
    "gat",
    "h2gcn",
    "dgi",
    "bgrl",
    "ae",
    "line",
    "node2vec",
    "gae",
    "vgae",
    "sageunsup",
    "sdcn",
)
"""The modules of the systems, in the order in which lists show them."""


@cache
def systems() -> dict[str, System]:
    """Return all systems by their names."""
    found = [import_module(f"h3gnn.baselines.{name}").SYSTEM for name in MODULES]
    return {system.name: system for system in found}
