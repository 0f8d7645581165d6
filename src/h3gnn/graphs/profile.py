"""Measure a graph: sizes, degrees, smoothness of the features, and homophily with bootstrap intervals."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from torch import Tensor

from h3gnn.graphs.graph import Graph
from h3gnn.graphs.libraries import import_pyg
from h3gnn.graphs.provenance import Repair
from h3gnn.graphs.scaling import scipy_features
from h3gnn.graphs.structural import simple_adjacency

LEVEL = 0.95
REPEATS = 400
WORK = 20_000_000
"""Edges counted over all bootstrap samples: large graphs, whose intervals are narrow, are resampled less."""
Interval = tuple[float, float]

HOMOPHILOUS = 0.5
PARTLY = 0.15
INFORMATIVE = 0.05
SMOOTH = 0.92
"""Thresholds of the verdict. On the paper's nine graphs they separate the citation graphs (adjusted homophily
0.67 to 0.77, centred smoothness 0.84 to 0.89) from the others (at most 0.03, at least 0.95)."""


@dataclass(frozen=True)
class Homophily:
    """Homophily of labelled nodes and the edges between them.

    Attributes:
        edge: share of directed edges, self-loops included, whose ends share a class (PyG, "edge").
        node: mean over nodes of the share of incoming edges from the own class (PyG, "node").
        class_insensitive: corrected for the sizes of the classes (PyG, "edge_insensitive").
        adjusted: edge homophily corrected for class degrees, 0 at chance (Platonov et al., 2023).
        label_informativeness: share of a node's class entropy that is removed by the class of a random
            neighbour, 0 to 1 (the same authors).
        by_class: for each class, the share of directed edges into it that come from it; NaN without edges.
        of_nodes: float `[nodes]`, share of neighbours that have the node's class, NaN without any.
        pairs: undirected edges between two labelled nodes.
        adjusted_interval, informativeness_interval: 95 % intervals; None if all nodes have a label.

    `adjusted`, `label_informativeness`, `of_nodes` and `pairs` ignore direction and self-loops.
    """

    edge: float
    node: float
    class_insensitive: float
    adjusted: float
    label_informativeness: float
    by_class: tuple[float, ...]
    of_nodes: Tensor
    pairs: int = 0
    adjusted_interval: Interval | None = None
    informativeness_interval: Interval | None = None

    @property
    def node_shares(self) -> Tensor:
        """`of_nodes` of the nodes that have labelled neighbours, float64."""
        return self.of_nodes[~self.of_nodes.isnan()].double()

    @property
    def mixed_share(self) -> float:
        """Share of these nodes that have neighbours both in and out of their class."""
        return float(((self.node_shares > 0) & (self.node_shares < 1)).double().mean())


def measure_homophily(edge_index: Tensor, labels: Tensor, num_classes: int) -> Homophily:
    """Measure homophily of labels int64 `[nodes]`, -1 where unknown, on edges int64 `[2, edges]`."""
    labelled = labels >= 0
    edges, known = _between(edge_index, labelled), labels[labelled]
    simple = simple_edges(edges, known.numel())
    partly = not bool(labelled.all()) and simple.shape[1] > 0
    bounds = _intervals(simple, known, num_classes) if partly else (None, None)
    joint = _joint(simple, known, num_classes)
    return Homophily(
        edge=_pyg_measure(edges, known, "edge"),
        node=_pyg_measure(edges, known, "node"),
        class_insensitive=_pyg_measure(edges, known, "edge_insensitive"),
        adjusted=_adjusted(joint),
        label_informativeness=_informativeness(joint),
        by_class=_by_class(edges, known, num_classes),
        of_nodes=local_homophily(edge_index, labels),
        pairs=simple.shape[1] // 2,
        adjusted_interval=bounds[0],
        informativeness_interval=bounds[1],
    )


def local_homophily(edge_index: Tensor, labels: Tensor) -> Tensor:
    """Return the share of each node's neighbours that have its class, float `[nodes]`, as in `Homophily`."""
    labelled = labels >= 0
    known = labels[labelled]
    edges = simple_edges(_between(edge_index, labelled), known.numel())
    degree = torch.bincount(edges[1], minlength=known.numel()).float()
    same = (known[edges[0]] == known[edges[1]]).float()
    own = torch.zeros(known.numel()).index_add_(0, edges[1], same)
    of_nodes = torch.full((labels.numel(),), torch.nan)
    of_nodes[labelled] = own / torch.where(degree > 0, degree, torch.nan)
    return of_nodes


def simple_edges(edge_index: Tensor, nodes: int) -> Tensor:
    """Return the edges in both directions, once, sorted and without self-loops, int64 `[2, edges]`."""
    first, second = edge_index[:, edge_index[0] != edge_index[1]]
    codes = torch.unique(torch.cat([first * nodes + second, second * nodes + first]))
    return torch.stack([codes // max(1, nodes), codes % max(1, nodes)])


def _between(edge_index: Tensor, labelled: Tensor) -> Tensor:
    """Return the edges between labelled nodes, renumbered."""
    both = labelled[edge_index[0]] & labelled[edge_index[1]]
    return (labelled.cumsum(0) - 1)[edge_index[:, both]]


def _adjusted(joint: Tensor) -> float:
    """Return `(h - e) / (1 - e)`, where e is the edge homophily expected from the degrees alone."""
    expected = float((joint.sum(1) ** 2).sum())
    return (float(joint.trace()) - expected) / (1 - expected) if expected < 1 else float("nan")


def _informativeness(joint: Tensor) -> float:
    """Return `I(class, neighbour's class) / H(class)` for a random edge."""
    margin = joint.sum(1)
    entropy = -float(torch.special.xlogy(margin, margin).sum())
    independent = margin[:, None] * margin[None, :]
    there = joint > 0
    information = float((joint[there] * (joint[there] / independent[there]).log()).sum())
    return information / entropy if entropy > 0 else float("nan")


def _joint(edge_index: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Return the share of edges from class to class, `[classes, classes]`, NaN without edges."""
    pairs = labels[edge_index[0]] * num_classes + labels[edge_index[1]]
    counts = torch.bincount(pairs, minlength=num_classes**2).double()
    return (counts / counts.sum()).view(num_classes, num_classes)


def _pyg_measure(edges: Tensor, labels: Tensor, method: str) -> float:
    if edges.shape[1] == 0 or (method == "edge_insensitive" and int(labels.max()) < 1):
        return float("nan")
    return float(import_pyg().utils.homophily(edges, labels, method=method))


def _by_class(edges: Tensor, labels: Tensor, num_classes: int) -> tuple[float, ...]:
    if edges.shape[1] == 0:
        return (float("nan"),) * num_classes
    shares = import_pyg().utils.homophily(edges, labels, batch=labels, method="edge").tolist()
    into = torch.bincount(labels[edges[1]], minlength=num_classes).tolist()
    return tuple(shares[one] if into[one] else float("nan") for one in range(num_classes))


def verdict(measured: Homophily | None, *, edges: int, smoothness: float | None, labelled: int = 0) -> str:
    """Return one sentence on the meaning of the figures; with few labels, that they are not enough.

    `edges` join different nodes; `smoothness` is that of the centred features, None if they are all equal.
    """
    if edges == 0:
        return "No edge joins two nodes, so a graph method has nothing to add to the features."
    if measured is None or np.isnan([measured.adjusted, measured.label_informativeness]).any():
        return _without_labels(smoothness, labelled, 0 if measured is None else measured.pairs)
    adjusted, informativeness = measured.adjusted_interval, measured.informativeness_interval
    bounds = [(a, i) for a in adjusted or () for i in informativeness or ()]
    if adjusted is not None and len({_kind(*corner) for corner in bounds}) > 1:
        return _too_few_labels(measured.pairs, adjusted, smoothness)
    figure = (
        f"adjusted homophily {measured.adjusted:.2f}{_within(adjusted)}, "
        f"label informativeness {measured.label_informativeness:.2f}{_within(informativeness)}"
    )
    meaning = KINDS[_kind(measured.adjusted, measured.label_informativeness)].format(figure=figure)
    mixed = 100 * (measured.mixed_share or 0)
    return f"{meaning}; {mixed:.0f} % of the nodes have neighbours in and out of their class."


KINDS = {
    "homophilous": "Neighbours mostly share a class ({figure}), so averaging over neighbours helps and the "
    "hop tokens can carry most of the embedding",
    "mixed": "Neighbours share a class more often than chance, but far from always ({figure}): the mixture "
    "of homophily and heterophily that this method is designed for",
    "heterophilous": "Neighbours rarely share a class, but their classes are informative ({figure}), so it "
    "helps to keep a node's own features apart from its neighbours', as this method does",
    "neither": "A neighbour's class is almost uninformative about a node's own ({figure}), so averaging over "
    "neighbours is not enough, and the node's own features have to carry most",
}


def _kind(adjusted: float, informativeness: float) -> str:
    if adjusted >= HOMOPHILOUS:
        return "homophilous"
    if adjusted >= PARTLY:
        return "mixed"
    return "heterophilous" if informativeness >= INFORMATIVE else "neither"


def _within(interval: Interval | None) -> str:
    return "" if interval is None else f" (95 %: {interval[0]:.2f} to {interval[1]:.2f})"


def _too_few_labels(pairs: int, interval: Interval, smoothness: float | None) -> str:
    joined = "1 edge joins two labelled nodes" if pairs == 1 else f"{pairs:,} edges join two labelled nodes"
    features = ""
    if smoothness is not None:
        alike = "similar features" if smoothness < SMOOTH else "features no more alike than others"
        features = f"; neighbours have {alike} (centred smoothness {smoothness:.2f})"
    return (
        f"There are too few labels to tell whether neighbours share a class: {joined}, and the 95 % interval "
        f"of adjusted homophily is {interval[0]:.2f} to {interval[1]:.2f}{features}."
    )


def _without_labels(smoothness: float | None, labelled: int, pairs: int) -> str:
    known = "There are no labels"
    if labelled:
        known = "All labelled neighbours have one class" if pairs else "No edge joins two labelled nodes"
    if smoothness is None:
        return f"{known}, and all features are equal: nothing shows what the edges mean."
    if smoothness < SMOOTH:
        return (
            f"{known}, but neighbours have similar features (centred smoothness {smoothness:.2f}, below 1), "
            "as in homophilous graphs, so the hop tokens can carry much of the embedding."
        )
    return (
        f"{known}, and neighbours have features no more alike than others (centred smoothness "
        f"{smoothness:.2f}, about 1), as in heterophilous graphs, so it helps to keep a node's own features "
        "apart from its neighbours', as this method does."
    )


def _intervals(edge_index: Tensor, labels: Tensor, num_classes: int) -> tuple[Interval, Interval]:
    """Return 95 % intervals of adjusted homophily and label informativeness, by a bootstrap over nodes.

    An edge counts as often as both of its ends are drawn, since the edges of a hub are not independent. The
    interval of adjusted homophily is at least the exact one for as many independent pairs (Clopper and
    Pearson), because few edges that agree by chance would seem certain.
    """
    edges = edge_index.shape[1]
    cell = labels[edge_index[0]] * num_classes + labels[edge_index[1]]
    generator = torch.Generator().manual_seed(0)
    samples: list[tuple[float, float]] = []
    for _ in range(max(50, min(REPEATS, WORK // edges))):
        drawn = torch.randint(labels.numel(), (labels.numel(),), generator=generator)
        times = torch.bincount(drawn, minlength=labels.numel()).double()
        counts = torch.bincount(cell, times[edge_index[0]] * times[edge_index[1]], num_classes**2)
        if float(counts.sum()) > 0:
            joint = (counts / counts.sum()).view(num_classes, num_classes)
            samples.append((_adjusted(joint), _informativeness(joint)))
    values = np.array(samples or [(np.nan, np.nan)])
    exact = _exact_interval(_joint(edge_index, labels, num_classes), edges // 2)
    return _hull([*_quantiles(values[:, 0]), *exact]), _hull(_quantiles(values[:, 1]))


def _exact_interval(joint: Tensor, pairs: int) -> list[float]:
    """Return the adjusted homophily at the ends of the exact interval of edge homophily."""
    from scipy.stats import beta

    same, tail = round(float(joint.trace()) * pairs), (1 - LEVEL) / 2
    low = float(beta.ppf(tail, same, pairs - same + 1)) if same else 0.0
    high = float(beta.ppf(1 - tail, same + 1, pairs - same)) if same < pairs else 1.0
    expected = float((joint.sum(1) ** 2).sum())
    return [(end - expected) / (1 - expected) for end in (low, high)] if expected < 1 else [-1.0, 1.0]


def _quantiles(values: np.ndarray) -> list[float]:
    known = values[~np.isnan(values)]
    return np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist() if known.size else []


def _hull(ends: list[float]) -> Interval:
    """Return the smallest interval that holds all ends, within [-1, 1]."""
    known = [end for end in ends if not np.isnan(end)]
    return (max(-1.0, min(known)), min(1.0, max(known))) if known else (-1.0, 1.0)


BINS = 10
"""Bins of the histogram of homophily over nodes."""

TINY = 1e-12
"""A squared norm below this is rounding error."""

COLUMN_BLOCK = 256
"""Feature columns made dense at a time."""


@dataclass(frozen=True)
class Degrees:
    """Number of neighbours of a node, without direction and self-loops."""

    mean: float
    median: float
    minimum: int
    maximum: int


@dataclass(frozen=True, kw_only=True)
class GraphProfile:
    """Measures of a graph, as `h3gnn inspect` shows them; those that need labels are None without them.

    Attributes:
        edges: directed edges, self-loops included; an undirected edge counts twice.
        directed: whether some edge has no opposite.
        components: weakly connected components; an isolated node is one.
        isolated: nodes without an edge to another node.
        feature_density: share of feature values that are not 0.
        smoothness: normalised Laplacian form of the features, divided by their squared norm: 0 if neighbours
            are alike, up to 2 if they are opposed.
        centred_smoothness: the same for centred columns; about 1 if neighbours are unrelated.
        labelled: nodes with a known class.
        edge_homophily to label_informativeness: see `Homophily`.
        class_homophily: by class name.
        node_homophily_histogram: nodes by share of neighbours in their class, ten bins from 0 to 1.
        mixed_share: share of these nodes that have neighbours both in and out of their class.
        labelled_pairs: undirected edges between two labelled nodes.
        adjusted_homophily_interval, label_informativeness_interval: 95 % intervals; None if all nodes have a
            label.
        verdict: the meaning of the figures for this method, in one sentence.
        columns: type and encoding of each column of the features.
        links: names of the link columns, and the columns of the tables of edges behind them.
    """

    source: str
    sha256: str
    nodes: int
    edges: int
    features: int
    classes: int
    directed: bool
    weighted: bool
    self_loops: int
    components: int
    largest_component: int
    isolated: int
    degrees: Degrees
    feature_density: float
    smoothness: float | None
    centred_smoothness: float | None
    labelled: int
    splits: int
    edge_homophily: float | None = None
    node_homophily: float | None = None
    class_insensitive_homophily: float | None = None
    adjusted_homophily: float | None = None
    label_informativeness: float | None = None
    class_homophily: dict[str, float | None] | None = None
    node_homophily_histogram: tuple[int, ...] | None = None
    mixed_share: float | None = None
    labelled_pairs: int | None = None
    adjusted_homophily_interval: Interval | None = None
    label_informativeness_interval: Interval | None = None
    repairs: tuple[Repair, ...]
    verdict: str
    columns: tuple[dict[str, Any], ...] = ()
    links: dict[str, Any] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        repairs = [repair.as_dict() for repair in self.repairs]
        return {**asdict(self), "repairs": repairs}


def profile(graph: Graph) -> GraphProfile:
    """Measure a graph."""
    edges, nodes = graph.edge_index, graph.num_nodes
    directed, adjacency = simple_adjacency(edges, nodes)
    components, member = sp.csgraph.connected_components(adjacency, directed=False)
    degree = np.diff(adjacency.indptr)
    smooth, centred = _smoothness(graph.features, adjacency)
    labels = torch.empty(0) if graph.labels is None else graph.labels
    labelled = int((labels >= 0).sum())
    measured = measure_homophily(edges, labels, graph.num_classes) if labelled else None
    links = None if graph.link_columns is None else graph.link_columns.plan
    return GraphProfile(
        source=graph.provenance.source,
        sha256=graph.provenance.sha256,
        nodes=nodes,
        edges=graph.num_edges,
        features=graph.num_features,
        classes=graph.num_classes,
        directed=directed.nnz < adjacency.nnz,
        weighted=graph.edge_weight is not None,
        self_loops=int((edges[0] == edges[1]).sum()),
        components=int(components),
        largest_component=int(np.bincount(member).max()),
        isolated=int((degree == 0).sum()),
        degrees=Degrees(float(degree.mean()), float(np.median(degree)), int(degree.min()), int(degree.max())),
        feature_density=_density(graph.features),
        smoothness=smooth,
        centred_smoothness=centred,
        labelled=labelled,
        splits=graph.num_splits,
        **({} if measured is None else _label_figures(measured, graph.class_names)),
        repairs=graph.provenance.repairs,
        verdict=verdict(measured, edges=int(adjacency.nnz), smoothness=centred, labelled=labelled),
        columns=() if graph.plan is None else tuple(column.as_dict() for column in graph.plan.columns),
        links=None if links is None else {"names": links.names, "tables": links.as_dict()["tables"]},
    )


def _label_figures(measured: Homophily, class_names: tuple[str, ...]) -> dict[str, Any]:
    histogram = np.histogram(measured.node_shares.numpy(), bins=BINS, range=(0.0, 1.0))[0]
    names = ("edge", "node", "class_insensitive", "adjusted")
    return {
        **{f"{name}_homophily": _known(getattr(measured, name)) for name in names},
        "label_informativeness": _known(measured.label_informativeness),
        "labelled_pairs": measured.pairs,
        "adjusted_homophily_interval": measured.adjusted_interval,
        "label_informativeness_interval": measured.informativeness_interval,
        "class_homophily": dict(zip(class_names, map(_known, measured.by_class), strict=True)),
        "node_homophily_histogram": tuple(histogram.tolist()),
        "mixed_share": _known(measured.mixed_share),
    }


def _known(value: float) -> float | None:
    """Return None for NaN, which JSON does not have."""
    return None if math.isnan(value) else value


def _density(features: Tensor) -> float:
    stored = features.values() if features.layout == torch.sparse_csr else features
    return int(torch.count_nonzero(stored)) / features.numel()


def _smoothness(features: Tensor, adjacency: Any) -> tuple[float | None, float | None]:
    """Return `Σ fᵀ L f / Σ fᵀ f` over the columns f, raw and centred, of nodes with neighbours; or None."""
    degree = np.diff(adjacency.indptr)
    some = degree > 0
    scale = sp.diags_array(np.where(some, 1.0 / np.sqrt(np.maximum(degree, 1)), 0.0))
    normalised = (scale @ adjacency @ scale).tocsr()
    form, norm = [0.0, 0.0], [0.0, 0.0]
    for columns in _dense_blocks(features):
        for which, values in enumerate((columns, columns - columns.mean(axis=0))):
            here = values * some[:, None]
            energy = float((here * here).sum())
            norm[which] += energy
            form[which] += energy - float((here * (normalised @ here)).sum())
    raw, centred = (max(f, 0.0) / n if n > TINY else None for f, n in zip(form, norm, strict=True))
    return raw, centred


def _dense_blocks(features: Tensor) -> Iterator[npt.NDArray[np.float64]]:
    sparse = features.layout == torch.sparse_csr
    matrix: Any = scipy_features(features).tocsc() if sparse else features.numpy()
    for start in range(0, features.shape[1], COLUMN_BLOCK):
        block = matrix[:, start : start + COLUMN_BLOCK]
        yield (block.toarray() if sparse else block).astype(np.float64)
