"""Small generated databases with known keys and links."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

ENTITIES = (
    "account",
    "client",
    "district",
    "product",
    "orders",
    "Supplier",
    "film",
    "actor",
    "branch",
    "invoices",
)
STYLES = ("{}_id", "{}Id", "{}ID", "id_{}")


@dataclass
class Database:
    """Tables, and the keys and links that an analyst would find."""

    frames: dict[str, pd.DataFrame] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    links: set[tuple[str, str, str]] = field(default_factory=set)
    """Table, column, other table."""

    def write(self, folder: Path) -> Path:
        """Write one CSV file per table."""
        for name, frame in self.frames.items():
            frame.to_csv(folder / f"{name}.csv", index=False)
        return folder


def generate(seed: int) -> Database:
    """Return tables with keys of several kinds, links, measurements, a link table, a self-link and gaps."""
    draw = np.random.default_rng(seed)
    made, style = Database(), str(draw.choice(STYLES))
    names = [str(one) for one in draw.permutation(ENTITIES)[: draw.integers(2, 6)]]
    ids = {}
    for name in names:
        rows = int(draw.integers(12, 60))
        numbers = 1 + np.arange(rows) + int(draw.integers(0, 3)) * 1000
        as_text = draw.random() < 0.3
        ids[name] = np.array([f"{name[0]}{one:04d}" for one in numbers]) if as_text else numbers
        made.keys[name] = column_of(style, name)
        made.frames[name] = pd.DataFrame({made.keys[name]: ids[name]})
    for at, name in enumerate(names):
        frame = made.frames[name]
        for other in names[:at]:
            if draw.random() < 0.5:
                column = column_of(style, other)
                frame[column] = _references(draw, ids[other], len(frame), gaps=draw.random() < 0.3)
                made.links.add((name, column, other))
        frame["amount"] = draw.normal(100, 20, len(frame)).round(2)
        frame["quantity"] = draw.integers(1, 9, len(frame))
        frame["kind"] = draw.choice(["a", "b", "c"], len(frame))
        if draw.random() < 0.3:
            frame[f"parent_{made.keys[name]}"] = _references(draw, ids[name], len(frame), gaps=True)
            made.links.add((name, f"parent_{made.keys[name]}", name))
    one, two = names[:2]
    link = pd.DataFrame({column_of(style, name): draw.choice(ids[name], 90) for name in (one, two)})
    made.frames[f"{one}_{two}"] = link.drop_duplicates().assign(weight=1.5)
    made.links |= {(f"{one}_{two}", column_of(style, name), name) for name in (one, two)}
    return made


def column_of(style: str, table: str) -> str:
    """Return the name of the key of a table, in the singular as people write it."""
    return style.format(table.lower().removesuffix("s"))


def _references(draw: np.random.Generator, ids: np.ndarray, rows: int, *, gaps: bool) -> pd.Series:
    column = pd.Series(draw.choice(ids, rows)).astype(object)
    if gaps:
        column[draw.random(rows) < 0.2] = None
    return column
