"""Raw files like those of Bitcoin-OTC, with few users, and their checksums."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from h3gnn.graphs import datasets
from h3gnn.graphs.datasets import NAMED_TABLES

FEW = ("6,2,4,1289241911.72836\n6,5,2,1289241941.53378\n", "6,+1\n5,-1\n")
"""Rows of ratings, and of labels."""


def pin(contents: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the data set have other contents, by their checksums."""
    known = NAMED_TABLES["bitcoin-otc"]
    tables = tuple(
        replace(table, raw=replace(table.raw, sha256=hashlib.sha256(content.encode()).hexdigest()))
        for table, content in zip(known.tables, contents, strict=True)
    )
    monkeypatch.setattr(datasets, "NAMED_TABLES", {"bitcoin-otc": replace(known, tables=tables)})


def write_raw(folder: Path, contents: tuple[str, str]) -> Path:
    """Write raw files into a data folder, ratings packed; return the folder of the files."""
    raw = folder / "bitcoin-otc" / "raw"
    raw.mkdir(parents=True)
    (raw / "soc-sign-bitcoinotc.csv.gz").write_bytes(gzip.compress(contents[0].encode()))
    (raw / "otc_gt.csv").write_text(contents[1])
    return raw


def many_ratings(users: int = 80) -> tuple[str, str]:
    """Return ratings and labels of users, half of them rated badly."""
    rng = np.random.default_rng(0)
    rows = []
    for at in range(8 * users):
        rater, rated = rng.choice(users, 2, replace=False)
        rating = rng.integers(-10, 0) if rated % 2 else rng.integers(1, 11)
        rows.append(f"{rater},{rated},{rating},{1.29e9 + 1000 * at:.5f}\n")
    return "".join(rows), "".join(f"{user},{'-1' if user % 2 else '+1'}\n" for user in range(users))
