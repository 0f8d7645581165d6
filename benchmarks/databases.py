"""Predictions from raw databases, beside gradient boosting on joined columns.

`python -m benchmarks.databases --data FOLDER [--tasks berka,chinook] [--methods joined,quick] [--draws 2]`
runs every method on every task of `benchmarks.database_tasks` and stores each score in
`benchmarks/results/databases.json` as soon as it is there; stored scores are not computed again, unless
`--again` says so. The scores are those of rows held out of the training rows; `--part test` scores the test
rows, once all is settled. `--processes` runs as many draws at the same time. `--table` prints the stored
scores as Markdown.

The labels of scored rows are hidden from every method. Boosting chooses its settings on validation rows that
are drawn from the training rows; "refitted" is then fitted to all of them. The measure "balanced accuracy" is
that of the most probable class relative to its share of the training rows, for every method.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from sklearn import metrics
from sklearn.model_selection import train_test_split

from benchmarks.database_tasks import TASKS, Integers, Problem, Task
from h3gnn.answers.prediction import predict_nodes
from h3gnn.baselines.typed import JoinedBoosting
from h3gnn.database import Database
from h3gnn.estimator import H3GNN
from h3gnn.graphs.ids import find_ids
from h3gnn.graphs.joins import joined_columns
from h3gnn.graphs.relational import RelationalGraph
from h3gnn.tables.database import read_database
from reproduction.files import read_json, rounded, write_json
from reproduction.origin import made_with

RESULTS = Path(__file__).parent / "results" / "databases.json"
VALIDATION, RESAMPLES = 0.2, 200
"""Share of the training rows on which boosting chooses its settings; resamples of dates of one draw."""
METHODS = {
    "own": "boosting on own columns",
    "joined": "boosting on joined columns",
    "refitted": "boosting on joined columns, refitted",
    "quick": "h3gnn, quick",
    "default": "h3gnn",
}
QUOTED = {  # from RelBench (2024)
    "f1-dnf-relbench": {"GraphSAGE": 0.717, "LightGBM": 0.730},
    "f1-top3-relbench": {"GraphSAGE": 0.726, "LightGBM": 0.739},
    "f1-position-relbench": {"GraphSAGE": 4.01, "LightGBM": 4.11},
}
Floats = npt.NDArray[np.float64]
Cell = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Running:
    """A problem whose labels are hidden but for the training rows."""

    task: Task
    problem: Problem

    @property
    def is_number(self) -> bool:
        """Whether a number is predicted."""
        return self.task.measure == "MAE"

    @cached_property
    def frames(self) -> dict[str, pd.DataFrame]:
        """The tables with the labels of the training rows only."""
        table, _, column = self.problem.label.partition(".")
        hidden = self.problem.cells.astype(object).copy()
        hidden[np.setdiff1d(np.arange(len(hidden)), self.problem.train)] = None
        return {**self.problem.frames, table: self.problem.frames[table].assign(**{column: hidden})}

    @cached_property
    def classes(self) -> npt.NDArray[Any]:
        """The classes of the training rows, sorted."""
        return np.unique(self.problem.cells.iloc[self.problem.train].astype(str))

    @cached_property
    def targets(self) -> npt.NDArray[Any]:
        """The class of each row, -1 where it is no class of a training row, or the number."""
        if self.is_number:
            return pd.to_numeric(self.problem.cells, errors="coerce").to_numpy(np.float64)
        return np.asarray(pd.Index(self.classes).get_indexer(self.problem.cells.astype(str)))

    @cached_property
    def graph(self) -> RelationalGraph:
        """The nodes of all types and their relations."""
        return read_database(self.frames, self.problem.schema, label=self.problem.label)

    @property
    def row_times(self) -> Integers | None:
        """The times of the labelled rows, if later rows do not count."""
        return self.graph.type(self.problem.table).time if self.problem.label_time == "row" else None

    @cached_property
    def split(self) -> tuple[Integers, Integers]:
        """Training rows without and with the validation rows of boosting."""
        train, spread = self.problem.train, None if self.is_number else self.targets[self.problem.train]
        first, second = train_test_split(train, test_size=VALIDATION, random_state=0, stratify=spread)
        return first, second

    def scores(self, predicted: Floats) -> Cell:
        """Return the score of predictions of all rows, and over resampled dates its standard error."""
        rows = self.problem.test
        cell: Cell = {"score": self.score(predicted, rows)}
        if self.problem.groups is not None and self.task.draws == 1:
            groups = pd.factorize(self.problem.groups[rows])[0]
            rng, found = np.random.default_rng(0), list[float]()
            members = [rows[groups == one] for one in range(groups.max() + 1)]
            for _ in range(RESAMPLES):
                drawn = rng.integers(0, len(members), len(members))
                found.append(self.score(predicted, np.concatenate([members[one] for one in drawn])))
            cell["resampled"] = found
        return cell

    def score(self, predicted: Floats, rows: Integers) -> float:
        """Return the measure of the task on some rows."""
        if self.is_number:
            return float(np.abs(predicted[rows, 0] - self.targets[rows]).mean())
        truth = self.problem.cells.iloc[rows].astype(str).to_numpy()
        if self.task.measure == "AUC":
            positive = np.isin(self.classes, self.problem.positive)
            ranked = predicted[rows][:, positive].sum(axis=1)
            return float(metrics.roc_auc_score(np.isin(truth, self.problem.positive), ranked))
        shares = np.bincount(self.targets[self.problem.train]) / len(self.problem.train)
        found = self.classes[(predicted[rows] / shares).argmax(axis=1)]
        return float(metrics.balanced_accuracy_score(truth, found))


def boosted(running: Running, columns: npt.NDArray[np.floating[Any]]) -> Floats:
    """Return what the best setting of boosting on some columns predicts, refitted to all training rows."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    settings, train = JoinedBoosting(), running.problem.train
    kind = HistGradientBoostingRegressor if running.is_number else HistGradientBoostingClassifier

    def fitted(rows: Integers, leaves: int, least: int) -> Floats:
        used = columns[:, ~np.isnan(columns[rows]).all(axis=0)]  # boosting needs a known value
        model = kind(
            max_iter=settings.max_iter,
            max_leaf_nodes=leaves,
            min_samples_leaf=least,
            l2_regularization=1.0,
            early_stopping=False,
            random_state=0,
        ).fit(used[rows], running.targets[rows])
        if running.is_number:
            return np.asarray(model.predict(used))[:, None]
        found = np.zeros((len(columns), len(running.classes)))
        found[:, model.classes_] = model.predict_proba(used)
        return found

    def loss(setting: tuple[int, int]) -> float:
        first, second = running.split
        found, truth = fitted(first, *setting)[second], running.targets[second]
        if running.is_number:
            return float(np.square(found[:, 0] - truth).mean())
        return float(metrics.log_loss(truth, found, labels=range(len(running.classes))))

    tried = product(settings.max_leaf_nodes, settings.min_samples_leaf)
    return fitted(train, *min(tried, key=loss))


def of_own(running: Running) -> Floats:
    """Boosting on the columns of the table itself."""
    own = running.graph.type(running.problem.table).features
    return boosted(running, own if own.shape[1] else np.zeros((len(own), 1)))


def of_joined(running: Running) -> Floats:
    """Boosting on joined columns, refitted to the validation rows, too."""
    name = running.problem.table
    joined = joined_columns(running.graph, name, row_times=running.row_times).values
    return boosted(running, np.hstack([running.graph.type(name).features, joined]))


def of_baseline(running: Running) -> Floats:
    """Boosting on joined columns as `h3gnn compare` has it."""
    rows = np.arange(len(running.targets))
    train, val = (torch.from_numpy(np.isin(rows, one))[:, None] for one in running.split)
    targets, times = torch.from_numpy(running.targets), running.row_times
    fit = JoinedBoosting().fit
    found = fit(running.graph, running.problem.table, targets, train, val, 0, times)[0].numpy()
    return np.asarray(found if running.is_number else np.exp(found), dtype=np.float64)


def of_h3gnn(running: Running, preset: str) -> Floats:
    """`h3gnn predict` of the rows without labels, but for the importance of columns."""
    problem = running.problem
    model = H3GNN.from_preset("quick", random_state=0) if preset == "quick" else H3GNN(random_state=0)
    database = Database(running.frames, schema=problem.schema, model=model)
    task = "regression" if running.is_number else "classification"
    asked = database.ask(problem.label, label_time=problem.label_time, task=task)
    found = predict_nodes(
        asked.model.graph_,
        asked.model.embedding_,
        asked.labels,
        asked.names,
        times=asked.times,
        measure_importance=False,
    ).table
    nodes = running.graph.type(problem.table).ids
    rows = find_ids(found["node"].to_numpy(), nodes)
    names = ["number"] if running.is_number else [f"p_{one}" for one in running.classes]
    predicted = np.full((len(nodes), len(names)), np.nan)
    predicted[rows] = found[names].to_numpy(np.float64)
    return predicted


FUNCTIONS: dict[str, Callable[[Running], Floats]] = {
    "own": of_own,
    "joined": of_baseline,
    "refitted": of_joined,
    "quick": lambda running: of_h3gnn(running, "quick"),
    "default": lambda running: of_h3gnn(running, "default"),
}


def run_cell(data: Path, task: str, method: str, draw: int, part: str) -> Cell:
    """Return the score of a method on a draw, and its CPU seconds from data frames to predictions."""
    torch.set_num_threads(1)
    running = Running(TASKS[task], TASKS[task].make(data, draw, part))
    started = time.process_time()
    predicted = FUNCTIONS[method](running)
    seconds = round(time.process_time() - started, 1)
    about = {"task": task, "method": method, "draw": draw, "part": part}
    found: Cell = rounded({**about, "seconds": seconds, **running.scores(predicted)})
    return found


def wanted(
    tasks: Sequence[str], methods: Sequence[str], draws: int, part: str
) -> Iterator[tuple[str, str, int, str]]:
    """Yield what is to be run, draw by draw."""
    for draw in range(max(TASKS[one].draws for one in tasks) if draws == 0 else draws):
        for task in tasks:
            if draw < TASKS[task].draws:
                yield from ((task, method, draw, part) for method in methods)


def run(
    data: Path, out: Path, cells: Sequence[tuple[str, str, int, str]], processes: int, *, again: bool
) -> None:
    """Compute the cells that are not stored, and store each as soon as it is there."""
    known = read_json(out)["cells"] if out.is_file() else []
    stored = {(one["task"], one["method"], one["draw"], one["part"]): one for one in known}
    missing = [one for one in cells if again or one not in stored]

    def store(cell: Cell) -> None:
        key = cell["task"], cell["method"], cell["draw"], cell["part"]
        stored[key] = cell
        title = f"{key[0]}/{key[1]}, draw {key[2]}"
        print(f"{title}: {cell['score']:.3f} in {cell['seconds']:.0f} s", flush=True)
        write_json(out, {**made_with(), "cells": [stored[one] for one in sorted(stored)]})

    if processes == 1:
        for one in missing:
            store(run_cell(data, *one))
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for done in as_completed([pool.submit(run_cell, data, *one) for one in missing]):
            store(done.result())


def markdown(cells: Sequence[Cell], part: str) -> str:
    """Return the stored scores of a part: means over draws, and what each method has beyond "refitted"."""
    lines = [["task", "measure", "draws", "method", "score", "minus refitted boosting", "CPU seconds"]]
    lines.append(["---"] * len(lines[0]))
    for name, task in TASKS.items():
        own = [one for one in cells if (one["task"], one["part"]) == (name, part)]
        known = {(one["method"], one["draw"]): one for one in own}
        for method, title in METHODS.items():
            draws = [draw for kind, draw in known if kind == method]
            if not draws:
                continue
            found = [known[method, draw] for draw in draws]
            paired = [draw for draw in draws if ("refitted", draw) in known]
            beyond = _figure(
                [known[method, one] for one in paired], [known["refitted", one] for one in paired]
            )
            seconds = float(np.mean([one["seconds"] for one in found]))
            figures = (_figure(found), beyond if method != "refitted" else "", f"{seconds:.0f}")
            lines.append([task.title, task.measure, str(len(draws)), title, *figures])
        for title, figure in QUOTED.get(name, {}).items():
            if own:
                lines.append(
                    [task.title, task.measure, "", f"{title}, quoted from RelBench", f"{figure:g}", "", ""]
                )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _figure(cells: Sequence[Cell], others: Sequence[Cell] | None = None) -> str:
    """Return the mean score and its standard error, or those of differences."""
    if not cells:
        return ""
    scores = np.array([one["score"] for one in cells])
    resampled = np.array([one.get("resampled", []) for one in cells])
    if others is not None:
        scores = scores - [one["score"] for one in others]
        resampled = resampled - np.array([one.get("resampled", []) for one in others])
    sign = "+" if others is not None else ""
    error = float(scores.std(ddof=1)) / len(scores) ** 0.5 if len(scores) > 1 else None
    if resampled.size:
        error = float(resampled.mean(axis=0).std())
    return f"{scores.mean():{sign}.3f}" + ("" if error is None else f" ± {error:.3f}")


def main() -> None:
    """Run, or print what is stored."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("..", "shared", "tables"))
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--draws", type=int, default=0, help="0 for all")
    parser.add_argument("--part", choices=("val", "test"), default="val")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_args()
    tasks, methods = asked.tasks.split(","), asked.methods.split(",")
    for given, known in ((tasks, TASKS), (methods, METHODS)):
        unknown = [one for one in given if one not in known]
        if unknown:
            raise SystemExit(f"{', '.join(unknown)}: choose from {', '.join(known)}")
    if not asked.table:
        cells = list(wanted(tasks, methods, asked.draws, asked.part))
        run(asked.data, asked.out, cells, asked.processes, again=asked.again)
    print(markdown(read_json(asked.out)["cells"], asked.part))


if __name__ == "__main__":
    main()
