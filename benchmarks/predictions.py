"""How good `h3gnn predict` is beside what users would write instead, with five draws of labelled nodes.

`python -m benchmarks.predictions [--only CASE,CASE/METHOD,…]` runs every method on every case and stores each
score in `benchmarks/results/predictions.json` as soon as it is there; scores that are stored are not computed
again, unless `--again` says so. A draw decides which nodes are labelled, and the score is that of the others.
`--data` is the folder of the raw data (../shared); a case whose data is missing is left out. The embedding
does not depend on labels: each graph is fitted once, and `--cache` keeps the fits in a folder.

While developing, use `--development`: other draws, stored in the cache folder. `--quick` is a trial run on
small tables. `--table` prints the stored scores as Markdown.
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
import time
import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata
from sklearn import metrics

from benchmarks.prediction_cases import CASES, Case, Integers, Problem, draw
from benchmarks.rivals import RIVALS, Table
from h3gnn.answers.extend import read_new_nodes
from h3gnn.answers.prediction import predict_nodes
from h3gnn.estimator import H3GNN
from h3gnn.evaluation.heads import Target
from reproduction.files import fingerprint, read_json, rounded, write_json
from reproduction.origin import made_with

RESULTS = Path(__file__).parent / "results" / "predictions.json"
DRAWS, DEVELOPMENT = 5, 1000
"""Number of draws, and the first seed of those for development."""
HEADS = {
    "predict": "`h3gnn predict`",
    "head-logistic": "`--head logistic`",
    "head-boosting": "`--head boosting`",
    "head-blend": "`--head blend`",
}
"""The methods of `h3gnn predict`: the default, and each other `--head`."""
METHODS = {**HEADS, **{name: title for name, (title, _) in RIVALS.items()}}
Floats = npt.NDArray[np.float64]
Cell = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """The folders of the raw data and of what is kept between runs, and whether this is a trial run."""

    data: Path
    cache: Path
    quick: bool

    def open(self, case: Case) -> Running:
        """Build a case; raise `FileNotFoundError` if its data is missing."""
        tables = self.cache / "tables"
        tables.mkdir(parents=True, exist_ok=True)
        return Running(case, case.make(self.data, tables, self.quick), self)


@dataclass(frozen=True, eq=False)
class Running:
    """One case: its problem, the columns of the rivals, and the fitted model."""

    case: Case
    problem: Problem
    place: Place

    @cached_property
    def table(self) -> Table:
        """The inputs of the rivals."""
        return Table(self.problem.graph)

    @cached_property
    def key(self) -> str:
        """A fingerprint of the graph, the truth, and what is labelled and measured."""
        truth = hashlib.sha256(np.ascontiguousarray(self.problem.truth).tobytes()).hexdigest()
        scored = {"labelled": self.case.labelled, "measure": self.case.measure, "truth": truth}
        return fingerprint({"graph": self.problem.graph.provenance.sha256, **scored})

    @cached_property
    def model(self) -> H3GNN:
        """The default of `h3gnn predict`, fitted once; of nodes that join, the model of the others."""
        if self.problem.joined:
            return self.place.open(CASES["fraud"]).model
        quick = H3GNN.from_preset("quick", epochs=2, channels=8, heads=2, random_state=0)
        model = quick if self.place.quick else H3GNN(random_state=0)
        settings = {name: repr(value) for name, value in model.get_params().items()}
        graph = self.problem.graph
        key = fingerprint({"graph": graph.provenance.sha256, "settings": settings})
        kept = self.place.cache / "models" / f"{self.case.name}-{key}"
        if kept.is_dir():
            return H3GNN.load(kept)
        model.fit(graph)
        kept.parent.mkdir(exist_ok=True)
        model.save(kept)
        return model

    def cell(self, method: str, seed: int) -> Cell:
        """Return the scores of a method with one draw of labelled nodes."""
        problem, nodes = self.problem, draw(self.case, self.problem, seed)
        if method in HEADS:
            _ = self.model  # fitting is not part of the time
        started = time.perf_counter()
        predicted = self._ours(method, nodes) if method in HEADS else self._rival(method, nodes)
        seconds = round(time.perf_counter() - started, 1)
        rest = problem.truth >= 0 if problem.classes else ~np.isnan(problem.truth)
        rest[nodes] = False
        rest[: -problem.joined or 0] = False
        scores = score(self.case.measure, problem.truth[rest], predicted[rest])
        return {"labelled": len(nodes), "seconds": seconds, **scores}

    def _rival(self, method: str, nodes: Integers) -> Floats:
        values, classes = self.problem.truth[nodes], len(self.problem.classes)
        if not classes:
            return RIVALS[method][1](self.table, nodes, Target(values, 0))[:, 0]
        present, codes = np.unique(values, return_inverse=True)  # a class may have no labelled node
        found = RIVALS[method][1](self.table, nodes, Target(codes, len(present)))
        predicted = np.zeros((len(found), classes))
        predicted[:, present] = np.exp(found)
        return predicted

    def _ours(self, method: str, nodes: Integers) -> Floats:
        """Return the probabilities or numbers of all nodes as `h3gnn predict` writes them."""
        problem, graph = self.problem, self.model.graph_
        labels = np.full(graph.num_nodes, -1 if problem.classes else np.nan)
        labels[nodes] = problem.truth[nodes]
        labels = labels.astype(np.int64) if problem.classes else labels
        extension = None
        if problem.new is not None:
            features, edges = problem.new
            extension = self.model.extend(*read_new_nodes(graph, features, [(None, edges)], reading={}))
        found = predict_nodes(
            graph,
            self.model.embedding_,
            labels,
            problem.classes,
            head=method.removeprefix("head-") if method != "predict" else "auto",
            extension=extension,
            measure_importance=False,
        ).table.set_index("node")
        columns = [f"p_{name}" for name in problem.classes] or ["number"]
        rows = found.reindex(problem.graph.node_ids).reindex(columns=columns, fill_value=0.0).to_numpy()
        return np.asarray(rows if problem.classes else rows[:, 0])


def score(measure: str, truth: Any, predicted: Floats) -> dict[str, float]:
    """Return the measure as "score", and others that belong to it."""
    if measure == "R²":
        error = float(metrics.mean_absolute_error(truth, predicted))
        return {"score": float(metrics.r2_score(truth, predicted)), "mae": error}
    if measure == "accuracy":
        return {"score": float((predicted.argmax(axis=1) == truth).mean())}
    rare = predicted[:, 1]
    found = {"score": float(metrics.average_precision_score(truth, rare))}
    return found | {"auc": float(metrics.roc_auc_score(truth, rare))}


def summarize(cells: list[Cell]) -> dict[str, dict[str, tuple[float, float]]]:
    """Return the mean score and its standard error over the draws, by case and method."""
    grouped: dict[str, dict[str, list[float]]] = {}
    for cell in cells:
        grouped.setdefault(cell["case"], {}).setdefault(cell["method"], []).append(cell["score"])
    return {
        case: {
            method: (
                float(np.mean(one)),
                float(np.std(one, ddof=1) / len(one) ** 0.5) if len(one) > 1 else 0.0,
            )
            for method, one in found.items()
        }
        for case, found in grouped.items()
    }


def first_or_near(found: dict[str, tuple[float, float]]) -> set[str]:
    """Return the best method and those within one standard error of it: the first's."""
    mean, error = max(found.values())
    return {method for method, (own, _) in found.items() if own >= mean - error}


def markdown(stored: dict[str, Any]) -> str:
    """Return the scores as a table, with a star at the first and at those within one standard error of it."""
    found = summarize(stored["cells"])
    cases = [name for name in CASES if name in found]
    methods = [name for name in METHODS if any(name in found[case] for case in cases)]
    ranks = {name: list[float]() for name in methods}
    for case in cases:
        own = [name for name in methods if name in found[case]]
        places = rankdata([-found[case][name][0] for name in own])
        for name, place in zip(own, places, strict=True):
            ranks[name].append(float(place))
    lines = [["data", "labelled", "measure", *(METHODS[name] for name in methods)]]
    lines.append(["---"] * len(lines[0]))
    near = {case: first_or_near(found[case]) for case in cases}
    for case in cases:
        count = next(cell["labelled"] for cell in stored["cells"] if cell["case"] == case)
        cells = [_cell(found[case].get(name), near=name in near[case]) for name in methods]
        lines.append([CASES[case].title, f"{count:,}", CASES[case].measure, *cells])
    lines.append(["mean rank", "", "", *(f"{np.mean(ranks[name]):.1f}" for name in methods)])
    firsts = [sum(name in near[case] for case in cases) for name in methods]
    lines.append(["first, or near", "", "", *(f"{one} of {len(cases)}" for one in firsts)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(found: tuple[float, float] | None, *, near: bool) -> str:
    if found is None:
        return "–"
    return f"{100 * found[0]:.1f} ± {100 * found[1]:.1f}{' ★' if near else ''}"


def wanted(only: str) -> dict[str, list[str]]:
    """Return the methods of each case from a list such as `fraud,twitch/boosting`; all by default."""
    if not only:
        return {case: list(METHODS) for case in CASES}
    found: dict[str, list[str]] = {}
    for one in only.split(","):
        case, _, method = one.partition("/")
        cases = list(CASES) if case in ("", "all") else [case]
        if not set(cases) <= CASES.keys() or (method and method not in METHODS):
            raise SystemExit(f"{one}: the cases are {', '.join(CASES)}; the methods {', '.join(METHODS)}")
        for name in cases:
            found.setdefault(name, []).extend([method] if method else METHODS)
    return found


def run(place: Place, out: Path, only: str, seeds: list[int], *, again: bool) -> dict[str, Any]:
    """Compute the cells that are not stored, and store each as soon as it is there."""
    stored = read_json(out) if out.is_file() else {"cells": []}
    cells = {(one["case"], one["method"], one["seed"]): one for one in stored["cells"]}
    for name, methods in wanted(only).items():
        try:
            running = place.open(CASES[name])
        except FileNotFoundError as missing:
            print(f"{name}: left out, {missing} is missing", flush=True)
            continue
        for method, seed in ((method, seed) for method in methods for seed in seeds):
            kept = cells.get((name, method, seed))
            if kept is not None and kept["data"] == running.key and not again:
                continue
            found = rounded(running.cell(method, seed))
            print(
                f"{name}/{method}, draw {seed}: {100 * found['score']:.2f} in {found['seconds']} s",
                flush=True,
            )
            about = {"case": name, "method": method, "seed": seed, "data": running.key}
            cells[name, method, seed] = about | found
            in_order = sorted(cells.values(), key=lambda one: (one["case"], one["method"], one["seed"]))
            write_json(out, {**made_with(), "cells": in_order})
    return {"cells": list(cells.values())}


def main() -> None:
    """Run, or print what is stored."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--data", type=Path, default=Path("..", "shared"))
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--out", type=Path)
    for name in ("development", "quick", "again", "table"):
        parser.add_argument(f"--{name}", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings(action="ignore"):
        place = Place(asked.data, asked.cache or Path(scratch), asked.quick)
        final = not (asked.quick or asked.development)
        out = asked.out or (RESULTS if final else place.cache / f"{'quick' if asked.quick else 'draws'}.json")
        if asked.table:
            print(markdown(read_json(out)))
            return
        first = 0 if final else DEVELOPMENT
        draws = list(range(first, first + (1 if asked.quick else asked.draws)))
        print(markdown(run(place, out, asked.only, draws, again=asked.again)))


if __name__ == "__main__":
    main()
