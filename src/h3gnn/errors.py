"""Exceptions with messages and codes for the user, and checks of single argument values."""

from __future__ import annotations

import math
import numbers
import re
import signal
from collections.abc import Collection
from typing import Any

STOPPING = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)  # not all on Windows
"""The signals that ask a command to end: it does when what it writes is whole."""


class InputError(ValueError):
    """Invalid user input. The message says what is wrong, where, and what to do.

    Attributes:
        code: stable identifier of the problem, such as "edge-weight-not-positive", for programs and tests.
    """

    default_code = "input"

    def __init__(self, message: str = "", *, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code or self.default_code

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep the code when the error travels between processes."""
        return type(self), self.args, {"code": self.code}


class GraphError(InputError):
    """Nodes, edges, features or labels do not form a valid graph."""

    default_code = "graph"


class ModelFolderError(InputError):
    """A saved model is missing, damaged, or was not written by h3gnn."""

    default_code = "model-folder"


class LossError(InputError):
    """The loss is no longer finite."""

    default_code = "loss-not-finite"


class CheckpointError(InputError):
    """A checkpoint is missing, damaged, or was not written by this version of h3gnn."""

    default_code = "checkpoint"


class RankLostError(RuntimeError):
    """Another process of a distributed job is gone; empty where a survivor has already said so."""


class TrainingStopped(KeyboardInterrupt):
    """A signal ended the training between two epochs; the message says which, and what was kept."""

    def __init__(self, progress: str, signal_number: int, kept: str = "") -> None:
        super().__init__(f"{progress}; {kept}" if kept else progress)
        self.progress = progress
        self.signal_number = signal_number


def check_whole(name: str, value: Any, least: int, most: int | None = None) -> int:
    """Return a whole number that is at least `least`, and at most `most`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise InputError(
            f"{name} must be an integer of at least {least}, not {value!r}", code="value-invalid"
        )
    if most is not None and int(value) > most:
        raise InputError(f"{name} must be at most {most:,}, not {value:,}", code="value-invalid")
    return int(value)


def check_number(name: str, value: Any, least: float, below: float, *, closed: bool = False) -> float:
    """Return a number in [least, below), or [least, below] when `closed`."""
    number = float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else math.nan
    if not least <= number <= below or (number == below and not closed):
        bound = "]" if closed else ")"
        raise InputError(
            f"{name} must be in [{least:g}, {below:g}{bound}, not {value!r}", code="value-invalid"
        )
    return number


def check_choice(name: str, value: Any, choices: Collection[str]) -> str:
    """Return one of the choices."""
    if not isinstance(value, str) or value not in choices:
        names = ", ".join(map(repr, choices))
        raise InputError(f"{name} must be one of {names}, not {value!r}", code="value-invalid")
    return value


def without_secrets(text: str) -> str:
    """Return a text without the passwords of addresses in it."""
    return re.sub(r"(?<=://)[^/@\s]*@", "…@", text)
