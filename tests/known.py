"""Use a value that may be None, where a test knows that it is not."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def known(value: T | None) -> T:
    """Return the value; fail if there is none."""
    assert value is not None
    return value
