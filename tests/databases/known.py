"""Tables like those of well-known databases: their names, keys and links, with generated values.

`known.txt` has a line `table rows: columns` for each table. A column is `*name`, a key; `name>table`, a link,
with `~` if it has gaps; `name:kind`; or `name`, a text. Kinds are `a-b` (integers), `f` (numbers), `t` (time
of the row), `s` (the same in seconds since 1970), `d` (other dates, later than that), `c` (categories), `x`
(missing), `ID` (texts such as ID00001 that are distinct), and `ID~` (such texts repeated).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

PARTS = re.split(r"# (\w+)\n", (Path(__file__).parent / "known.txt").read_text())
KNOWN = dict(zip(PARTS[1::2], PARTS[2::2], strict=True))
COLUMN = re.compile(r"(\*?)([^*:=>~]+)(?:=(\w+))?(?:>([\w.]+))?(?::([\w-]+))?(~?)")
WORDS = ("red", "green", "blue", "amber")


@dataclass
class Known:
    """Tables, keys, times, and links (table, column, other table)."""

    frames: dict[str, pd.DataFrame] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    times: dict[str, str] = field(default_factory=dict)
    links: set[tuple[str, str, str]] = field(default_factory=set)


def known(name: str, seed: int = 0) -> Known:
    """Return the tables of a database."""
    draw, made = np.random.default_rng(seed), Known()
    tables = {}
    for line in KNOWN[name].strip().split("\n"):
        head, columns = line.split(": ", 1)
        table, rows = head.split()
        found = [COLUMN.fullmatch(one) for one in columns.split()]
        tables[table] = int(rows), [one.groups() for one in found if one]
    keys: dict[str, Any] = {}
    for table, (rows, columns) in tables.items():
        for _, column, prefix, *_ in (one for one in columns if one[0]):
            made.keys[table] = column
            keys[table] = [f"{prefix}{at:05d}" for at in range(rows)] if prefix else 1 + np.arange(rows)
    for table, (rows, columns) in tables.items():
        cells: dict[str, Any] = {}
        for is_key, column, _, to, kind, gaps in columns:
            if to:
                made.links.add((table, column, to))
                values = pd.Series(draw.choice(keys[to], rows))
                if is_key:
                    keys[table] = draw.permutation(keys[to])[:rows]
                    values = pd.Series(keys[table])
                if gaps:
                    values = values.astype(object).mask(draw.random(rows) < 0.3, None)
            else:
                values = pd.Series(keys[table] if is_key else _values(draw, kind, column, rows, gaps))
            if kind in ("t", "s"):
                made.times[table] = column
            cells[column] = values
        made.frames[table] = pd.DataFrame(cells)
    return made


def _values(draw: np.random.Generator, kind: str | None, name: str, rows: int, repeated: str) -> Any:
    """Return the values of a column that is neither key nor link."""
    if kind is None:
        return [f"{name} {one:06x}" for one in draw.integers(0, 1 << 24, rows)]
    if kind in "dst" and not repeated:
        seconds = pd.Series(draw.integers(0, 10**8, rows)) + (10**8 + 10**9 * (1 + (kind == "d")))
        return seconds if kind == "s" else pd.to_datetime(seconds, unit="s").dt.strftime("%Y-%m-%d %H:%M:%S")
    if kind in "cfx":
        return {"c": draw.choice(WORDS, rows), "f": draw.normal(50, 12, rows).round(2), "x": [None] * rows}[
            kind
        ]
    if "-" in kind:
        least, most = map(int, kind.split("-"))
        return draw.integers(least, most + 1, rows)
    numbers = draw.integers(0, max(2, rows // 3), rows) if repeated else np.arange(rows)
    return [f"{kind}{one:05d}" for one in numbers]
