"""Measure a graph: sizes, degrees, smoothness of the features, and homophily."""

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

from h3gnn.graphs.graph import Graph, scipy_features
from h3gnn.graphs.homophily import Homophily, measure_homophily, verdict
from h3gnn.graphs.provenance import Repair
from h3gnn.graphs.structural import simple_adjacency

BINS = 10
"""Bins of the histogram of homophily over nodes."""

TINY = 1e-12
"""A squared norm below this is rounding error."""

COLUMN_BLOCK = 256
"""Feature columns made dense at a time."""

LABEL_FIGURES = (
    "edge_homophily",
    "node_homophily",
    "class_insensitive_homophily",
    "adjusted_homophily",
    "label_informativeness",
    "class_homophily",
    "node_homophily_histogram",
    "mixed_share",
    "labelled_pairs",
    "adjusted_homophily_interval",
    "label_informativeness_interval",
)


@dataclass(frozen=True)
class Degrees:
    """Number of neighbours of a node, without direction and self-loops."""

    mean: float
    median: float
    minimum: int
    maximum: int


@dataclass(frozen=True)
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
    edge_homophily: float | None
    node_homophily: float | None
    class_insensitive_homophily: float | None
    adjusted_homophily: float | None
    label_informativeness: float | None
    class_homophily: dict[str, float | None] | None
    node_homophily_histogram: tuple[int, ...] | None
    mixed_share: float | None
    labelled_pairs: int | None
    adjusted_homophily_interval: tuple[float, float] | None
    label_informativeness_interval: tuple[float, float] | None
    repairs: tuple[Repair, ...]
    verdict: str
    columns: tuple[dict[str, Any], ...] = ()

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
    labelled = 0 if graph.labels is None else int((graph.labels >= 0).sum())
    measured = None
    if graph.labels is not None and labelled:
        measured = measure_homophily(edges, graph.labels, graph.num_classes)
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
        **_label_figures(measured, graph.class_names),
        repairs=graph.provenance.repairs,
        verdict=verdict(measured, edges=int(adjacency.nnz), smoothness=centred, labelled=labelled),
        columns=() if graph.plan is None else tuple(column.as_dict() for column in graph.plan.columns),
    )


def _label_figures(measured: Homophily | None, class_names: tuple[str, ...]) -> dict[str, Any]:
    if measured is None:
        return dict.fromkeys(LABEL_FIGURES)
    names = ("edge", "node", "class_insensitive", "adjusted")
    return {
        **{f"{name}_homophily": _known(getattr(measured, name)) for name in names},
        "label_informativeness": _known(measured.label_informativeness),
        "labelled_pairs": measured.pairs,
        "adjusted_homophily_interval": measured.adjusted_interval,
        "label_informativeness_interval": measured.informativeness_interval,
        "class_homophily": dict(zip(class_names, map(_known, measured.by_class), strict=True)),
        "node_homophily_histogram": tuple(
            np.histogram(measured.node_shares.numpy(), bins=BINS, range=(0.0, 1.0))[0].tolist()
        ),
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
    form, norm = np.zeros(2), np.zeros(2)
    for columns in _dense_blocks(features):
        for which, values in enumerate((columns, columns - columns.mean(axis=0))):
            here = values * some[:, None]
            energy = float((here * here).sum())
            norm[which] += energy
            form[which] += energy - float((here * (normalised @ here)).sum())
    ratios = [
        max(f, 0.0) / n if n > TINY else None for f, n in zip(form.tolist(), norm.tolist(), strict=True)
    ]
    return ratios[0], ratios[1]


def _dense_blocks(features: Tensor) -> Iterator[npt.NDArray[np.float64]]:
    sparse = features.layout == torch.sparse_csr
    matrix: Any = scipy_features(features).tocsc() if sparse else features.numpy()
    for start in range(0, features.shape[1], COLUMN_BLOCK):
        block = matrix[:, start : start + COLUMN_BLOCK]
        yield (block.toarray() if sparse else block).astype(np.float64)
