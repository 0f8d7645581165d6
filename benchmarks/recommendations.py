"""Recommendations from raw databases: simple scorers, vectors, and the automatic choice among them.

`python -m benchmarks.recommendations --data FOLDER [--tasks bitcoin-otc]` hides the latest fifth of the
links, the test links: of users with earlier links, the items that are new to them, or all where repeats are
normal; of orders, whose products have one time, a random product each. `fit_recommender` gets the earlier
ones and hides the latest fifth of them in the same way, the validation links, which choose settings, scorers
and blends. `--test` scores the test links as well, once all is settled. The scores are in
`benchmarks/results/recommendations.json`; `--table` prints them as Markdown.

"Columns" are a table's own columns and means along paths of relations, without the links and without events.
"H3GNN" is an embedding, by the preset quick, of the graph of each type, in which the links that are neither
validation nor test links are a relation.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.database_tasks import opened
from h3gnn.answers import recommend
from h3gnn.answers.interactions import Integers, Interactions, interactions
from h3gnn.answers.recommender import CUTOFF, TITLES, Recommender, blended
from h3gnn.estimator import H3GNN
from h3gnn.evaluation.ranking import measure_hidden
from h3gnn.graphs.relational import Relation, RelationalGraph
from h3gnn.graphs.type_view import type_view
from h3gnn.tables.database import read_database
from reproduction.files import read_json, rounded, write_json
from reproduction.origin import made_with

RESULTS = Path(__file__).parent / "results" / "recommendations.json"


CHINOOK = ("chinook/Chinook_Sqlite.sqlite", "InvoiceLine")
TASKS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "northwind-customers": ("northwind", "order-details", {"users": "customers"}),
    "northwind-orders": ("northwind", "order-details", {"users": "orders"}),
    "chinook-tracks": (*CHINOOK, {"items": "Track"}),
    "chinook-artists": (*CHINOOK, {"items": "Artist"}),
    "chinook-genres": (*CHINOOK, {"items": "Genre"}),
    "bitcoin-otc": ("bitcoin_otc", "soc-sign-bitcoinotc", {}),
}
"""The source of the tables of each task, the table of its links, and their ends."""
CHOICE = "automatic choice"
METHODS = {
    CHOICE: (tuple(TITLES), "columns"),
    **{name: ((name,), "columns") for name in [*TITLES][:-2]},
    **{f"{name}, columns": ((name,), "columns") for name in ("item vectors", "user vectors")},
    **{f"{name}, H3GNN": ((name,), "h3gnn") for name in ("item vectors", "user vectors")},
}
"""The kinds of scorers from which each method chooses, and its vectors."""


def hide(data: Interactions, seed: int) -> recommend.Hidden:
    """Hide the test links of all links, or the validation links of the others."""
    repeats = recommend.repeats_share(data) >= recommend.REPEATED
    return recommend.hide_latest(data, repeats=repeats, seed=seed)


def embeddings(graph: RelationalGraph, train: Interactions, order: Sequence[Integers]) -> dict[str, Any]:
    """Return H3GNN's vectors of users and items; `order` has the positions of both in the graph."""
    known = train.part(hide(train, seed=0).kept & train.chosen)
    ends = np.unique(np.stack([order[0][known.users], order[1][known.items]]), axis=1)
    chosen = Relation("chosen", train.user_type, train.item_type, ends)
    linked = replace(graph, relations=(*graph.relations, chosen))
    model = H3GNN.from_preset("quick")
    return {one: model.fit(type_view(linked, one)).embedding_ for one in (chosen.source, chosen.target)}


def measured(fitted: Recommender, test: recommend.Hidden) -> dict[str, Any]:
    """Return how high the test links are ranked."""
    known = fitted.known.of(test.users)
    scores = blended(fitted.scorers, fitted.weights[known.cold.astype(int)], known, known.valid())
    return recommend.summary(measure_hidden(scores, test.rows, test.items, CUTOFF))


def run_task(data: Path, name: str, *, test: bool) -> Iterator[dict[str, Any]]:
    """Yield the scores of every method on a task."""
    (source, table, ends), known = TASKS[name], list(TITLES)
    graph = read_database(*opened(data / source))
    links, *order = interactions(graph, table, **ends).in_order()
    hidden, kinds = hide(links, seed=1), (links.user_type, links.item_type)
    train = links.part(hidden.kept)
    rest, _ = recommend.without(graph, table, kinds)
    vectors: dict[str, dict[str, Any]] = {
        "columns": {kind: recommend.described(rest, kind) for kind in kinds},
        "h3gnn": embeddings(rest, train, order),
    }
    for method, (of, described) in METHODS.items():
        if not set(of) & set(known):  # too many items for EASE, or no columns
            continue
        both = [vectors[described][kind] for kind in kinds]
        both = [one if one is None else one[at] for one, at in zip(both, order, strict=True)]
        fitted = recommend.fit_recommender(train, *both, kinds=of)
        scores = fitted.scores["known_users"]
        known = list(scores["scorers"]) if method == CHOICE else known
        users = {"val": scores["hidden_users"], "test": len(hidden.users)}
        cell = {"task": name, "method": method, "weights": scores["weights"], "users": users}
        cell |= {"val": scores["chosen"], **({"test": measured(fitted, hidden)} if test else {})}
        yield rounded(cell)


def markdown(stored: dict[str, Any], part: str = "test") -> str:
    """Return the stored scores as two tables, in percent, with standard errors."""
    cells = {(one["method"], one["task"]): one for one in stored["cells"] if part in one}
    tasks, lines = [name for name in TASKS if (CHOICE, name) in cells], []
    for measure in (f"recall@{CUTOFF}", f"ndcg@{CUTOFF}"):
        lines += ["", f"| {measure} | {' | '.join(tasks)} |"]
        lines += ["| --- " * (len(tasks) + 1) + "|"]
        for method in METHODS:
            own = [cells.get((method, name), {}).get(part, {}).get(measure) for name in tasks]
            figures = [f"{100 * one['mean']:.1f} ± {100 * one['error']:.1f}" if one else "–" for one in own]
            lines.append(f"| {method} | {' | '.join(figures)} |")
        users = [f"{cells[CHOICE, name]['users'][part]:,}" for name in tasks]
        lines.append(f"| users | {' | '.join(users)} |")
    return "\n".join(lines[1:])


def main() -> None:
    """Run, or print what is stored."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("..", "shared", "tables"))
    parser.add_argument("--tasks", default=",".join(TASKS))
    for name in ("test", "table"):
        parser.add_argument(f"--{name}", action="store_true")
    asked = parser.parse_args()
    stored = read_json(RESULTS) if RESULTS.is_file() else {"cells": []}
    for name in [] if asked.table else asked.tasks.split(","):
        others = [one for one in stored["cells"] if one["task"] != name]
        stored = {**made_with(), "cells": others + list(run_task(asked.data, name, test=asked.test))}
        write_json(RESULTS, stored)
        print(f"{name}: done", flush=True)
    for part in ("val", "test"):
        if any(part in cell for cell in stored["cells"]):
            print(f"\n{part}\n\n{markdown(stored, part)}")


if __name__ == "__main__":
    main()
