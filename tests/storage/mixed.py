"""A table with a column for each encoder but that of sentences, and a graph of its rows."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd

from h3gnn import Graph
from h3gnn.graphs.convert import as_graph

ENCODERS = ["number", "boolean", "category", "date", "list", "vector", "text", ""]


def mixed_table(rows: int = 40) -> pd.DataFrame:
    """Return a column of each kind, some with gaps, and a constant, which is left out."""
    random = np.random.default_rng(0)
    words = ["red", "green", "blue", "small", "large", "round", "old", "new"]
    columns: dict[str, Any] = {
        "balance": np.where(np.arange(rows) % 7, random.normal(size=rows), np.nan),
        "open": ["yes" if one else "no" for one in random.integers(2, size=rows)],
        "colour": [words[one] for one in random.integers(3, size=rows)],
        "since": pd.Timestamp("2020-01-01") + pd.to_timedelta(random.integers(900, size=rows), "D"),
        "tags": [list(random.choice(words, 2, replace=False)) for _ in range(rows)],
        "place": list(random.normal(size=(rows, 3))),
        "note": [" ".join(random.choice(words, 5)) + f" of {row}" for row in range(rows)],
        "same": ["x"] * rows,
    }
    return pd.DataFrame(columns)


def mixed_table_graph(rows: int = 40) -> Graph:
    """Return a ring of the rows."""
    edges = np.stack([np.arange(rows), (np.arange(rows) + 1) % rows])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the constant is left out
        return as_graph(mixed_table(rows), edges)
