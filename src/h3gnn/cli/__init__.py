"""The command line: argv in, calls to the library out; no logic of its own."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from functools import partial

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
    from h3gnn.cli.output import run_on_copies

    say_warnings()
    return partial(run_on_copies, app, sys.argv[1:])
