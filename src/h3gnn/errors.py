"""Exceptions with messages and codes for the user, and checks of single argument values."""

from __future__ import annotations

import itertools
import math
import numbers
import re
import shlex
import signal
from collections.abc import Collection, Iterable
from typing import Any

STOPPING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""Signals that ask a command to end, which it does once the current file is complete."""


COPIES: dict[str, str] = {}
"""Beginnings of the paths of local copies of remote files, and what messages show instead."""


def named(text: str) -> str:
    """Return a text in which local copies have the names of the remote files."""
    for local, remote in COPIES.items():
        text = text.replace(local, remote)
    return text


class InputError(ValueError):
    """Invalid user input; the message says what is wrong, where, and what to do.

    Attributes:
        code: stable identifier of the problem, such as "edge-weight-not-positive".
    """

    default_code = "input"

    def __init__(self, message: str = "", *, code: str | None = None) -> None:
        super().__init__(named(message))
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
    """Another process of a distributed job has ended; the message is empty if one has reported it."""


class TrainingStopped(KeyboardInterrupt):
    """A signal ended the training between two epochs; the message names the epoch and what was stored."""

    def __init__(self, progress: str, signal_number: int, kept: str = "") -> None:
        super().__init__(f"{progress}; {kept}" if kept else progress)
        self.progress, self.signal_number = progress, signal_number


def check_whole(name: str, value: Any, least: int, most: int | None = None) -> int:
    """Return an integer in [least, most]."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        problem = f"{name} must be an integer of at least {least}, not {value!r}"
    elif most is not None and int(value) > most:
        problem = f"{name} must be at most {most:,}, not {value:,}"
    else:
        return int(value)
    raise InputError(problem, code="value-invalid")


def check_number(name: str, value: Any, least: float, below: float, *, closed: bool = False) -> float:
    """Return a number in [least, below), or [least, below] when `closed`."""
    number = float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else math.nan
    if not least <= number <= below or (number == below and not closed):
        interval = f"[{least:g}, {below:g}{']' if closed else ')'}"
        raise InputError(f"{name} must be in {interval}, not {value!r}", code="value-invalid")
    return number


def check_choice(name: str, value: Any, choices: Collection[str]) -> str:
    """Return the value if it is one of the choices."""
    if not isinstance(value, str) or value not in choices:
        names = ", ".join(map(repr, choices))
        raise InputError(f"{name} must be one of {names}, not {value!r}", code="value-invalid")
    return value


def shortened(names: Iterable[object], most: int = 8, separator: str = ", ") -> str:
    """Join names for a message; after the first `most` follows "…"."""
    shown = [str(name) for name in itertools.islice(names, most + 1)]
    return separator.join(shown[:most]) + f"{separator}…" * (len(shown) > most)


def counted(count: int, noun: str) -> str:
    """Return a number of things: `1 row`, `1,200 rows`."""
    return f"{count:,} {noun}" + "s" * (count != 1)


def clipped(text: str, most: int = 80) -> str:
    """Return a text with at most `most` characters; a longer one ends with "…"."""
    return text if len(text) <= most else text[: most - 1] + "…"


def as_option(flag: str, value: str) -> str:
    """Return an option as it can be pasted into a shell: `--columns 'my zip=category'`."""
    return f"{flag} {shlex.quote(value)}"


def as_list(names: Iterable[str]) -> str:
    """Return names as an option takes them, separated by commas."""
    return ",".join(f'"{name}"' if "," in name else name for name in names)


def without_secrets(text: str) -> str:
    """Return a text with the passwords in URLs removed."""
    return re.sub(r"(?<=://)[^/@\s]*@", "…@", text)
