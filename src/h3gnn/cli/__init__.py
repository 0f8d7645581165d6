"""The command line: argv in, calls to the library out; no logic of its own."""

from __future__ import annotations

import gc
from collections.abc import Callable

from h3gnn.cli import exit as ending

__all__ = ["main"]

COLLECTION = (100_000, 20, 50)
"""Thresholds of the garbage collector: with Python's, it takes a fifth of the time of importing torch."""


def main() -> None:
    """Run a command; see `ending` for how it may end, from its first import on."""
    gc.set_threshold(*COLLECTION)
    ending.run(_load)


def _load() -> Callable[[], object]:
    from h3gnn.cli.app import app, say_warnings

    say_warnings()
    return app
