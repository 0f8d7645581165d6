"""Read many tables whose meaning is known: as they are meant, with a question, or rejected.

`python -m tests.fuzz.tables --tables 10000 --pairs 5000 --seed 1 --store` makes the counts in
`tests/fuzz/counts.json` that docs/security.md quotes. Tables that are read otherwise than they are meant are
printed, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from h3gnn.errors import InputError
from h3gnn.tables.read import read_graph
from tests.fuzz.hunting import store
from tests.fuzz.later import pairs, read_pair
from tests.fuzz.made_tables import MadeTable, tables, write_all
from tests.fuzz.readings import wrong_reading

ASKS = ("ambiguous", "mixed", "differ-in-case", "negative", "missing-word", "almost-unique", "unreadable")
"""Parts of the codes of errors that ask which of several readings is meant."""
SHOWN = 10
TABLES, PAIRS = "tables with a known meaning", "pairs of a table and a later one"


class Outcomes:
    """Counts how tables were read, and keeps what was misread."""

    def __init__(self) -> None:
        self.ended = Counter[str](attempts=0, read=0, asked=0, rejected=0, misread=0)
        self.codes, self.wrong = Counter[str](), list[str]()

    def add(self, made: object, read: Callable[[], str]) -> None:
        """Count one table; `read` returns how it was misread, "" if it was not."""
        self.ended["attempts"] += 1
        try:
            wrong = read()
        except InputError as error:
            asked = any(part in error.code for part in ASKS)
            self.ended["asked" if asked else "rejected"] += 1
            self.codes[error.code] += 1
            return
        self.ended["misread" if wrong else "read"] += 1
        if wrong:
            self.wrong.append(f"{wrong}\n    {made}")


def read_table(made: MadeTable) -> str:
    """Read a table; return how it was misread."""
    with tempfile.TemporaryDirectory() as folder:
        graph = read_graph(**write_all(Path(folder), made))
        return wrong_reading(graph, made)


RUNS: dict[str, tuple[st.SearchStrategy[Any], Callable[[Any], str]]] = {
    TABLES: (tables(), read_table),
    PAIRS: (pairs(), read_pair),
}


def examine(made: st.SearchStrategy[Any], read: Callable[[Any], str], count: int, number: int) -> Outcomes:
    """Read a number of tables, drawn from a seed."""
    found = Outcomes()
    checks: dict[str, Any] = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}

    @seed(number)
    @settings(max_examples=count, phases=[Phase.generate], **checks)
    @given(made)
    def each(table: Any) -> None:
        found.add(table, lambda: read(table))

    each()
    return found


def main() -> None:
    """Read tables and pairs of tables, and store how they ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=300)
    parser.add_argument("--pairs", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store", action="store_true", help="write the counts to tests/fuzz/counts.json")
    chosen, misread = parser.parse_args(), 0
    for name, count in ((TABLES, chosen.tables), (PAIRS, chosen.pairs)):
        if count:
            found = examine(*RUNS[name], count, chosen.seed)
            print(name, dict(found.ended), dict(found.codes.most_common()), sep="\n")
            print(*(one[:4000] for one in found.wrong[:SHOWN]), sep="\n")
            misread += len(found.wrong)
            if chosen.store:
                store(name, {**found.ended, "seed": chosen.seed})
    raise SystemExit(int(misread > 0))


if __name__ == "__main__":
    main()
