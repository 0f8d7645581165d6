"""How well injected anomalies are found, against detectors that take a few lines each.

`python -m benchmarks.anomalies [GRAPH …] [--seeds 3]` puts anomalies into benchmark graphs by the usual
protocol (Ding et al., 2019, as PyGOD does): structural ones, random nodes joined to cliques of fifteen; and
as many contextual ones, nodes that take the features of the farthest of fifty random nodes. A model is
fitted on the damaged graph with the preset `quick`, `H3GNN.anomalies` ranks the nodes, and the area under the
ROC curve is printed, over all anomalies and for each kind against the nodes that nothing was done to.
Labels play no part.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.ensemble import IsolationForest
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import LocalOutlierFactor

from h3gnn.answers.links import Neighbourhood, reduced_features
from h3gnn.encoder.support import build_support
from h3gnn.estimator import H3GNN
from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.datasets import load
from h3gnn.graphs.graph import Graph
from reproduction.files import read_json, rounded, write_json
from reproduction.origin import made_with, origin

RESULTS = Path(__file__).parent / "results" / "anomalies.json"
GRAPHS = ("texas", "wisconsin", "chameleon-filtered", "cora")
PRESET = "quick"
CLIQUE, CANDIDATES, SHARE = 15, 50, 0.025
"""Nodes of a clique, nodes among which the farthest is taken, and the share of nodes of each kind."""
Doubles = npt.NDArray[np.float64]


def inject(graph: Graph, seed: int) -> tuple[Graph, npt.NDArray[np.int64]]:
    """Return the damaged graph, and of each node 0 (as it was), 1 (structural) or 2 (contextual)."""
    random = np.random.default_rng(seed)
    nodes = graph.num_nodes
    cliques = max(1, round(SHARE * nodes / CLIQUE))
    size = CLIQUE if nodes >= 40 * CLIQUE else max(4, round(SHARE * nodes))
    chosen = random.permutation(nodes)[: 2 * cliques * size]
    structural, contextual = np.split(chosen, 2)
    ends = [graph.edge_index.numpy()]
    for members in structural.reshape(cliques, size):
        a, b = np.meshgrid(members, members)
        ends.append(np.stack([a[a != b], b[a != b]]))
    features = graph.dense_features().numpy().copy()
    for node in contextual:
        others = random.permutation(nodes)[:CANDIDATES]
        far = np.linalg.norm(features[others] - features[node], axis=1).argmax()
        features[node] = graph.dense_features().numpy()[others[far]]
    kind = np.zeros(nodes, dtype=np.int64)
    kind[structural], kind[contextual] = 1, 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        damaged = check_graph(
            features, np.concatenate(ends, axis=1), source=f"{graph.provenance.source}, damaged"
        )
    return damaged, kind


def degree(graph: Graph) -> Doubles:
    """Return the number of neighbours."""
    return np.asarray(Neighbourhood(graph.edge_index, graph.num_nodes).degree, dtype=np.float64)


def neighbour_distance(graph: Graph) -> Doubles:
    """Return the distance of a node's features to the mean of its neighbours'."""
    around, features = Neighbourhood(graph.edge_index, graph.num_nodes), reduced_features(graph, 64)
    mean = (around.adjacency @ features) / np.maximum(around.degree, 1)[:, None]
    return np.asarray(np.linalg.norm(features - mean, axis=1), dtype=np.float64)


def isolation_forest(graph: Graph) -> Doubles:
    """Return the isolation forest's score of the features (Liu et al., 2008)."""
    rows = reduced_features(graph, 64)
    return np.asarray(-IsolationForest(random_state=0).fit(rows).score_samples(rows))


def local_outlier_factor(graph: Graph) -> Doubles:
    """Return the local outlier factor of the features (Breunig et al., 2000)."""
    return np.asarray(-LocalOutlierFactor().fit(reduced_features(graph, 64)).negative_outlier_factor_)


def dominant(graph: Graph, epochs: int = 100, width: int = 64, share: float = 0.5) -> Doubles:
    """Return the error of an autoencoder of features and edges (DOMINANT; Ding et al., 2019)."""
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    support = build_support(graph.edge_index, graph.num_nodes)
    step = support.pattern.matrix(support.normalized(None)).to_dense().to(device)
    edges, rows = (step > 0).float(), graph.dense_features().to(device)
    layers = torch.nn.ModuleList(
        torch.nn.Linear(a, b) for a, b in ((rows.shape[1], width), (width, width), (width, rows.shape[1]))
    ).to(device)
    optimizer = torch.optim.Adam(layers.parameters(), lr=0.005)
    for _ in range(epochs):
        hidden = torch.relu(step @ layers[1](torch.relu(step @ layers[0](rows))))
        rebuilt, joined = step @ layers[2](hidden), torch.sigmoid(hidden @ hidden.T)
        error = share * (rebuilt - rows).norm(dim=1) + (1 - share) * (joined - edges).norm(dim=1)
        optimizer.zero_grad()
        error.mean().backward()
        optimizer.step()
    return np.asarray(error.detach().double().cpu().numpy())


def of_model(graph: Graph) -> dict[str, Doubles]:
    """Return the score of `H3GNN.anomalies`, and of each of its parts."""
    table = H3GNN.from_preset(PRESET).fit(graph).anomalies().sort_values("node")
    names = {"score": "H3GNN", "features": "  part features", "neighbours": "  part neighbours"}
    names |= {"difficulty": "  part difficulty", "disagreement": "  part disagreement"}
    return {names[name]: table[name].to_numpy() for name in names if name in table}


BASELINES: dict[str, Callable[[Graph], Doubles]] = {
    "degree": degree,
    "distance to neighbours": neighbour_distance,
    "isolation forest": isolation_forest,
    "local outlier factor": local_outlier_factor,
    "DOMINANT": dominant,
}


def areas(score: Doubles, kind: npt.NDArray[np.int64]) -> dict[str, float]:
    """Return the area under the ROC curve for all anomalies and for each kind."""
    cases = {"all": (1, 2), "structural": (1,), "contextual": (2,)}
    found = {}
    for name, odd in cases.items():
        some = np.isin(kind, (0, *odd))
        found[name] = float(roc_auc_score(kind[some] > 0, score[some]))
    return found


def measure(name: str, seeds: int) -> list[dict[str, Any]]:
    """Return mean and standard deviation over seeds, one row for each detector."""
    graph, found = load(name), dict[str, list[dict[str, float]]]()
    for seed in range(seeds):
        damaged, kind = inject(graph, seed)
        scores = of_model(damaged) | {title: score(damaged) for title, score in BASELINES.items()}
        for title, score in scores.items():
            found.setdefault(title, []).append(areas(score, kind))
    rows = []
    for title, each in found.items():
        mean = {case: float(np.mean([one[case] for one in each])) for case in each[0]}
        std = {case: float(np.std([one[case] for one in each])) for case in each[0]}
        rows.append(
            {"graph": name, "detector": title, "auc": mean, "std": std, "seeds": seeds, "origin": origin()}
        )
        text = ", ".join(f"{case} {100 * mean[case]:.1f} ± {100 * std[case]:.1f}" for case in mean)
        print(f"{name:20} {title:24} {text}", flush=True)
    return rows


def markdown(rows: list[dict[str, Any]]) -> str:
    """Return the table of docs/similarity.md: the mean AUC in percent, of all anomalies and of each kind."""
    graphs = list(dict.fromkeys(row["graph"] for row in rows))
    lines = ["| detector | " + " | ".join(graphs) + " |", "| --- |" + " --- |" * len(graphs)]
    for title in dict.fromkeys(row["detector"] for row in rows):
        of = {row["graph"]: row for row in rows if row["detector"] == title}
        cells = []
        for name in graphs:
            mean, std = of[name]["auc"], of[name]["std"]["all"]
            kinds = f"{100 * mean['structural']:.1f}, {100 * mean['contextual']:.1f}"
            cells.append(f"{100 * mean['all']:.1f} ± {100 * std:.1f} ({kinds})")
        lines.append(f"| {title.strip()} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graphs", nargs="*", default=list(GRAPHS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows = read_json(asked.out)["rows"] if asked.out.exists() else []
    for name in asked.graphs:
        rows = [row for row in rows if row["graph"] != name] + measure(name, asked.seeds)
        write_json(asked.out, {"device": device, "preset": PRESET, **made_with(), "rows": rounded(rows, 4)})
    print(json.dumps({"written": str(asked.out)}))


if __name__ == "__main__":
    main()
