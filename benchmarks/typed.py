"""Graphs with several types of nodes: macro-F1 on HeCo's graphs and splits, of rivals and of H3GNN.

`python -m benchmarks.typed --data FOLDER [--graphs acm,dblp] [--methods paths,hgt]` reads the folders `acm`,
`dblp`, `aminer` and `freebase` as HeCo's repository lays them out, runs every method with five seeds and one
setting each, and stores each score in `benchmarks/results/typed.json` as soon as it is there; scores that are
stored are not computed again, unless `--again` says so. A folder that is missing is left out.

Each graph has three splits, with 20, 40 and 60 labelled nodes per class. An embedding is scored by logistic
regression, its penalty chosen on the validation nodes; the other methods choose what they choose there too.
The scores are those of the validation nodes; `--test` scores the test nodes as well, once all is settled.
`--table` prints the stored scores as Markdown.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from h3gnn.baselines.supervised import Predictions
from h3gnn.baselines.typed import HGT, RGCN, JoinedBoosting, PathMeans, TypedNetwork, TypedSystem
from h3gnn.estimator import H3GNN
from h3gnn.evaluation.evaluator import Evaluator
from h3gnn.experiments.run import evaluate_predictions
from h3gnn.graphs.relational import NodeTable, Relation, RelationalGraph
from h3gnn.graphs.type_view import type_view
from reproduction.files import read_json, rounded, write_json
from reproduction.origin import made_with

RESULTS = Path(__file__).parent / "results" / "typed.json"
RATES = (20, 40, 60)
"""Labelled nodes per class of each split."""
SEEDS = 5
CLASSIFIED = {"acm": "p", "dblp": "a", "aminer": "p", "freebase": "m"}
"""The type of each graph whose nodes have classes."""
HELD_OUT = ("aminer", "freebase")
"""Graphs that run only if they are asked for by name."""
Cell = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Problem:
    """A typed graph with the classes of one type and its splits; masks are bool `[nodes, splits]`."""

    graph: RelationalGraph
    type: str
    labels: Tensor
    masks: dict[str, Tensor]
    key: str

    @classmethod
    def read(cls, folder: Path) -> Problem:
        """Read a folder: `??.txt` has the links of two types, `?_feat.npz` features, `labels.npy` classes."""
        links = {one.stem: np.loadtxt(one, dtype=np.int64).T for one in sorted(folder.glob("??.txt"))}
        features = {one.name[0]: sp.csr_array(sp.load_npz(one)) for one in sorted(folder.glob("?_feat.npz"))}
        labels, name = np.load(folder / "labels.npy").astype(np.int64), CLASSIFIED[folder.name]
        counts = {kind: rows.shape[0] for kind, rows in features.items()}
        counts[name] = max(counts.get(name, 0), len(labels))
        for kinds, ends in links.items():
            for kind, nodes in zip(kinds, ends, strict=True):
                counts[kind] = max(counts.get(kind, 0), int(nodes.max()) + 1)
        kept = {kinds: np.unique(ends, axis=1) for kinds, ends in links.items()}
        relations = [Relation(kinds, kinds[0], kinds[1], ends) for kinds, ends in kept.items()]
        types = {kind: _nodes(kind, count, features.get(kind)) for kind, count in counts.items()}
        classes = torch.full((counts[name],), -1)
        classes[: len(labels)] = torch.from_numpy(labels)
        masks = {part: _mask(folder, part, counts[name]) for part in ("train", "val", "test")}
        digest = hashlib.sha256()
        for one in (labels, *kept.values(), *(rows.tocoo().coords[1] for rows in features.values())):
            digest.update(np.ascontiguousarray(one).tobytes())
        graph = RelationalGraph(types, tuple(relations), source=folder.name)
        return cls(graph, name, classes, masks, digest.hexdigest()[:16])


def _nodes(name: str, count: int, features: Any) -> NodeTable:
    """Return the nodes of a type; the last ones may have no row of features."""
    entries: Any = sp.coo_array((count, 0)) if features is None else features.tocoo()
    shape = (count, entries.shape[1])
    rows = sp.csr_array((entries.data.astype(np.float32), entries.coords), shape=shape)
    return NodeTable(
        name, np.arange(count), rows, feature_names=tuple(f"{name}{at}" for at in range(shape[1]))
    )


def _mask(folder: Path, part: str, nodes: int) -> Tensor:
    mask = torch.zeros(nodes, len(RATES), dtype=torch.bool)
    for split, rate in enumerate(RATES):
        mask[torch.from_numpy(np.load(folder / f"{part}_{rate}.npy").astype(np.int64)), split] = True
    return mask


@dataclass(frozen=True)
class Method:
    """A method with its only setting.

    Attributes:
        title: for tables.
        run: returns, from problem, seed and device, an embedding `[nodes, D]` or log-probabilities
            `[splits, nodes, classes]`.
        settings: all that the result depends on, besides the problem and the seed.
        has_chance: whether the seed matters; without, one run is enough.
        probe: the probe of an embedding.
    """

    title: str
    run: Callable[[Problem, int, torch.device], Tensor]
    settings: str
    has_chance: bool = True
    probe: str = "features"


def rival(title: str, system: TypedSystem) -> Method:
    """Return a system of `h3gnn.baselines.typed` as a method."""

    def run(problem: Problem, seed: int, device: torch.device) -> Tensor:
        place = device if isinstance(system, TypedNetwork) else torch.device("cpu")
        parts = (problem.labels, problem.masks["train"], problem.masks["val"])
        labels, train, val = (one.to(place) for one in parts)
        return system.fit(problem.graph, problem.type, labels, train, val, seed).cpu()

    return Method(title, run, repr(system), system.has_chance)


def embed_type(problem: Problem, seed: int, device: torch.device) -> Tensor:
    """Return H3GNN's embedding of the nodes that have classes, with the default settings."""
    view = type_view(problem.graph, problem.type)
    return torch.from_numpy(H3GNN(random_state=seed, device=device.type).fit(view).embedding_)


METHODS = {
    "h3gnn": Method("H3GNN", embed_type, repr(sorted(H3GNN(device="cpu").get_settings().items()))),
    "paths": rival("features along paths, untrained", PathMeans()),
    "boosting": rival("boosting on joined columns", JoinedBoosting()),
    "rgcn": rival("R-GCN", RGCN()),
    "hgt": rival("HGT", HGT()),
}


def run_cell(problem: Problem, method: Method, seed: int, device: torch.device, *, test: bool) -> Cell:
    """Return the macro-F1 of each split on its validation nodes, and on its test nodes if asked."""
    started = time.perf_counter()
    masks, found = problem.masks, method.run(problem, seed, device)
    cell: Cell = {"device": device.type, "seconds": round(time.perf_counter() - started, 1)}
    for part in ("val", "test") if test else ("val",):
        evaluator = Evaluator(problem.labels, masks["train"], masks["val"], masks[part], probe=method.probe)
        if found.ndim == 2:
            evaluator.add(0, found)
            scores = evaluator.result().scores
        else:
            scores = evaluate_predictions(Predictions(found, [{}] * len(RATES)), evaluator).scores
        cell[part] = scores.macro_f1
    return cell


def markdown(stored: dict[str, Any]) -> str:
    """Return the stored scores as a table: means over seeds, and their standard errors."""
    lines = [
        ["graph", "method", *(f"{part} {rate}" for part in ("val", "test") for rate in RATES), "seconds"]
    ]
    lines.append(["---"] * len(lines[0]))
    for graph in CLASSIFIED:
        for name, method in METHODS.items():
            own = [one for one in stored["cells"] if (one["graph"], one["method"]) == (graph, name)]
            if not own:
                continue
            figures = [
                _figure([one[part][at] for one in own if part in one])
                for part in ("val", "test")
                for at in range(len(RATES))
            ]
            seconds = float(np.mean([one["seconds"] for one in own]))
            lines.append([graph, method.title, *figures, f"{seconds:.0f}"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _figure(values: Sequence[float]) -> str:
    if not values:
        return "–"
    error = f" ± {100 * np.std(values, ddof=1) / len(values) ** 0.5:.1f}" if len(values) > 1 else ""
    return f"{100 * np.mean(values):.1f}{error}"


def run(
    data: Path,
    out: Path,
    graphs: Sequence[str],
    methods: Sequence[str],
    seeds: int,
    device: torch.device,
    *,
    test: bool,
    again: bool,
) -> dict[str, Any]:
    """Compute the cells that are not stored, and store each as soon as it is there.

    The file is read again before it is written, since several runs may share it.
    """
    cells = _stored(out)
    for graph in graphs:
        if not (data / graph).is_dir():
            print(f"{graph}: left out, {data / graph} is missing", flush=True)
            continue
        problem = Problem.read(data / graph)
        for name in methods:
            method = METHODS[name]
            for seed in range(seeds if method.has_chance else 1):
                kept = cells.get((graph, name, seed), {})
                same = kept.get("data") == problem.key and kept.get("settings") == method.settings
                if same and ("test" in kept or not test) and not again:
                    continue
                found = rounded(run_cell(problem, method, seed, device, test=test))
                shown = " / ".join(f"{100 * one:.1f}" for one in found["val"])
                print(f"{graph}/{name}, seed {seed}: {shown} in {found['seconds']} s", flush=True)
                about = {"graph": graph, "method": name, "seed": seed, "data": problem.key}
                cells = _stored(out)
                cells[graph, name, seed] = {**about, "settings": method.settings, **found}
                in_order = [cells[key] for key in sorted(cells)]
                write_json(out, {**made_with(), "cells": in_order})
    return {"cells": list(cells.values())}


def _stored(path: Path) -> dict[tuple[str, str, int], Cell]:
    cells = read_json(path)["cells"] if path.is_file() else []
    return {(one["graph"], one["method"], one["seed"]): one for one in cells}


def main() -> None:
    """Run, or print what is stored."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("..", "shared", "tables", "heco"))
    parser.add_argument("--graphs", default=",".join(one for one in CLASSIFIED if one not in HELD_OUT))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    for name in ("test", "again", "table"):
        parser.add_argument(f"--{name}", action="store_true")
    asked = parser.parse_args()
    graphs, methods = asked.graphs.split(","), asked.methods.split(",")
    for given, known in ((graphs, CLASSIFIED), (methods, METHODS)):
        unknown = [one for one in given if one not in known]
        if unknown:
            raise SystemExit(f"{', '.join(unknown)}: choose from {', '.join(known)}")
    if asked.table:
        print(markdown(read_json(asked.out)))
        return
    kinds = {"test": asked.test, "again": asked.again}
    print(markdown(run(asked.data, asked.out, graphs, methods, asked.seeds, asked.device, **kinds)))


if __name__ == "__main__":
    main()
