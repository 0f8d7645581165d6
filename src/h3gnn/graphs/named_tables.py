"""Tables by name, for `h3gnn download`: public data sets as CSV files of edges and labels.

The checksums are those of the rows of the unpacked files: a local copy may be unpacked and have a header.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from h3gnn.errors import InputError
from h3gnn.graphs.datasets import PinnedFile, csv_rows, find_files


@dataclass(frozen=True)
class NamedTable:
    """One CSV file that is written.

    Attributes:
        name: of the file.
        columns: its header; the raw file has none.
        values: what replaces the values of the last column, if anything does.
        raw: the file to download.
    """

    name: str
    columns: tuple[str, ...]
    raw: PinnedFile
    values: Mapping[str, str]

    def text(self, path: Path) -> str:
        """Return the content of the CSV file, from the raw file."""
        rows = [row.rsplit(",", 1) for row in csv_rows(path, self.raw.bytes)]
        lines = [f"{first},{self.values.get(last, last)}" for first, last in rows]
        return "\n".join([",".join(self.columns), *lines, ""])


@dataclass(frozen=True)
class NamedTables:
    """A data set: what it contains, where it comes from, its licence, and its tables."""

    about: str
    source: str
    licence: str
    tables: tuple[NamedTable, ...]


NAMED_TABLES = {
    "bitcoin-otc": NamedTables(
        "35,592 ratings (-10 to 10) with times among 5,881 users of Bitcoin-OTC; 180 are labelled as "
        "fraudulent and 136 as benign. The labels were derived from ratings by the founder and by users he "
        "trusts",
        "SNAP, soc-sign-bitcoin-otc (Kumar et al., 2016); labels of REV2 (Kumar et al., 2018) in "
        "github.com/fpour/TGBase",
        "ratings: none stated; repository with the labels: MIT",
        (
            NamedTable(
                "ratings.csv",
                ("source", "target", "rating", "time"),
                PinnedFile(
                    "soc-sign-bitcoinotc.csv.gz",
                    "76bd9d8f1d3ff9a1813d9fc8e6902a0ee4d0a2f8c1003842dbc9ec79149ab60c",
                    1_011_180,
                    "https://snap.stanford.edu/data/soc-sign-bitcoinotc.csv.gz",
                    of_rows=True,
                ),
                {},
            ),
            NamedTable(
                "labels.csv",
                ("id", "label"),
                PinnedFile(
                    "otc_gt.csv",
                    "73dab2edf3004b112cedaf75cbc4c953981798bfaa83eac3fa5bac2d59a3d040",
                    2_408,
                    "https://raw.githubusercontent.com/fpour/TGBase/"
                    "5d3a79d822b7332061b39515f1449da8ce25a372/data/otc_gt.csv",
                    of_rows=True,
                ),
                {"+1": "benign", "-1": "fraud"},
            ),
        ),
    )
}


def read_named_tables(name: str, data_dir: str | Path | None = None) -> dict[str, str]:
    """Return the contents of the CSV files of a data set, by file name.

    Args:
        name: one of `NAMED_TABLES`.
        data_dir: folder of raw files, as for `h3gnn.graphs.datasets.load`.
    """
    found = NAMED_TABLES.get(name.lower())
    if found is None:
        message = f"there are no tables called {name!r}; known names: {', '.join(NAMED_TABLES)}"
        raise InputError(message, code="tables-unknown")
    paths = find_files(name.lower(), name.lower(), [table.raw for table in found.tables], data_dir)
    return {table.name: table.text(path) for table, path in zip(found.tables, paths, strict=True)}
