"""Shows the formulas of docstrings as MathML, which browsers draw by themselves."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

import griffe
from latex2mathml.converter import convert

BLOCK = re.compile(
    r"^(?P<indent>[ ]*)\.\. math::(?P<same>.*)\n(?P<below>(?:(?P=indent)[ ]+\S.*\n)*)", re.MULTILINE
)
INLINE = re.compile(r":math:`([^`]+)`")
VARIANT = re.compile(r'<mi mathvariant="(double-struck|script|bold)">([A-Za-z])</mi>')


class Formulas(griffe.Extension):
    """Rewrites `:math:` and `.. math::` in every docstring that griffe reads."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite one docstring."""
        if obj.docstring is not None:
            obj.docstring.value = with_formulas(obj.docstring.value)


def with_formulas(text: str) -> str:
    """Return a docstring with its formulas as MathML."""
    blocks = BLOCK.sub(_block, text + "\n")
    return INLINE.sub(lambda found: to_mathml(found[1], "inline"), blocks).rstrip("\n")


def to_mathml(formula: str, display: str) -> str:
    """Return LaTeX as one line of MathML.

    Browsers draw a letter's variants no longer from an attribute; they have characters of their own.
    """
    return VARIANT.sub(
        lambda found: f"<mi>{_letter(*found.groups())}</mi>", convert(formula, display=display)
    )


def _block(found: re.Match[str]) -> str:
    formula = " ".join(f"{found['same']} {found['below']}".split())
    if "&" in formula:
        formula = rf"\begin{{align*}} {formula} \end{{align*}}"
    return f"{found['indent']}{to_mathml(formula, 'block')}\n"


def _letter(variant: str, letter: str) -> str:
    size = "CAPITAL" if letter.isupper() else "SMALL"
    name = f"{variant} {size} {letter}".upper()
    try:
        return unicodedata.lookup(f"MATHEMATICAL {name}")
    except KeyError:
        return unicodedata.lookup(name)  # a few, such as ℝ, were there before the others
