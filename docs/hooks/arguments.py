"""Gives arguments that share a line of a docstring a line each, as the reader of docstrings wants them."""

from __future__ import annotations

import re
from typing import Any

import griffe

SHARED = re.compile(
    r"^(?P<indent>[ ]{4,})(?P<names>\w+(?:, \w+)+): (?P<text>.*(?:\n(?P=indent)[ ]+\S.*)*)", re.M
)


class Arguments(griffe.Extension):
    """Divides `a, b: text` in every docstring that griffe reads."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite one docstring."""
        if obj.docstring is not None:
            obj.docstring.value = one_by_one(obj.docstring.value)


def one_by_one(text: str) -> str:
    """Return a docstring in which every line of a section names one argument; the text is said for each."""
    return SHARED.sub(
        lambda found: "\n".join(
            f"{found['indent']}{name}: {found['text']}" for name in found["names"].split(", ")
        ),
        text,
    )
