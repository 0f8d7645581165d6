"""The command line: argv in, calls to the library out; no logic of its own."""

from h3gnn.cli.app import main

__all__ = ["main"]
