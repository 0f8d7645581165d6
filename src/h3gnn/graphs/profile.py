"""What kind of graph it is, in numbers and in one sentence."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from h3gnn.graphs.checks import is_sparse
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.homophily import Homophily, measure_homophily, verdict
from h3gnn.graphs.provenance import Repair
from h3gnn.graphs.structural import simple_adjacency

BINS = 10
"""Bars of the histogram of homophily over nodes."""

TINY = 1e-12
"""A squared norm below this is what rounding leaves of 0."""

COLUMN_BLOCK = 256
"""Feature columns that are made dense at a time."""


@dataclass(frozen=True)
class Degrees:
    """Number of neighbours of a node, without direction and self-loops."""

    mean: float
    median: float
    minimum: int
    maximum: int


@dataclass(frozen=True)
class GraphProfile:
    """What `h3gnn inspect` tells about a graph; measures that need labels are None without them.

    Attributes:
        edges: directed edges, self-loops included; an undirected edge counts twice.
        directed: whether some edge has no opposite.
        components: connected components, direction disregarded; an isolated node is one.
        isolated: nodes without an edge to another node.
        feature_density: share of feature values that are not 0.
        smoothness: the paper's normalised Laplacian form of the features, divided by their squared norm:
            0 where neighbours are alike, up to 2 where they are opposed.
        centred_smoothness: the same after the mean of each column is taken off, so that what all nodes share
            does not count; about 1 where neighbours are unrelated.
        labelled: nodes with a known class.
        edge_homophily to label_informativeness: see `Homophily`.
        class_homophily: by class name.
        node_homophily_histogram: nodes by share of neighbours in their class, ten bins from 0 to 1.
        mixed_share: share of these nodes that have neighbours both in and out of their class.
        labelled_pairs: edges between two labelled nodes, which alone these figures can count.
        adjusted_homophily_interval, label_informativeness_interval: where the two lie with 95 %, None where
            all nodes have a label.
        verdict: what the figures mean for this method, in one sentence.
        columns: what each column of the features holds, why that is thought, and how it became numbers.
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
    figures = _label_figures(measured, graph.class_names)
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
        **figures,
        repairs=graph.provenance.repairs,
        verdict=verdict(
            edges=int(adjacency.nnz),
            smoothness=centred,
            adjusted_homophily=figures["adjusted_homophily"],
            label_informativeness=figures["label_informativeness"],
            mixed_share=figures["mixed_share"],
            labelled=labelled,
            pairs=figures["labelled_pairs"] or 0,
            adjusted_interval=figures["adjusted_homophily_interval"],
            informativeness_interval=figures["label_informativeness_interval"],
        ),
        columns=() if graph.plan is None else tuple(column.as_dict() for column in graph.plan.columns),
    )


def _label_figures(measured: Homophily | None, class_names: tuple[str, ...]) -> dict[str, Any]:
    names = ("edge", "node", "class_insensitive", "adjusted")
    if measured is None:
        unknown = [*(f"{name}_homophily" for name in names), "label_informativeness", "class_homophily"]
        unknown += ["labelled_pairs", "adjusted_homophily_interval", "label_informativeness_interval"]
        return dict.fromkeys([*unknown, "node_homophily_histogram", "mixed_share"])
    shares = measured.of_nodes[~measured.of_nodes.isnan()].double()
    return {
        **{f"{name}_homophily": _known(getattr(measured, name)) for name in names},
        "label_informativeness": _known(measured.label_informativeness),
        "labelled_pairs": measured.pairs,
        "adjusted_homophily_interval": measured.adjusted_interval,
        "label_informativeness_interval": measured.informativeness_interval,
        "class_homophily": {
            name: _known(share) for name, share in zip(class_names, measured.by_class, strict=True)
        },
        "node_homophily_histogram": tuple(
            int(count) for count in np.histogram(shares.numpy(), bins=BINS, range=(0.0, 1.0))[0]
        ),
        "mixed_share": _known(float(((shares > 0) & (shares < 1)).double().mean())),
    }


def _known(value: float) -> float | None:
    """JSON has no NaN."""
    return None if math.isnan(value) else value


def _density(features: Tensor) -> float:
    stored = features.values() if features.layout == torch.sparse_csr else features
    return int(torch.count_nonzero(stored)) / features.numel()


def _smoothness(features: Tensor, adjacency: Any) -> tuple[float | None, float | None]:
    """Return `Σ_columns fᵀ L f / Σ_columns fᵀ f`, as the features are and with their columns centred.

    Only nodes that have neighbours count; None stands where the features are 0.
    """
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


def _dense_blocks(features: Tensor) -> Any:
    matrix: Any
    if features.layout == torch.sparse_csr:
        parts = (features.values().numpy(), features.col_indices().numpy(), features.crow_indices().numpy())
        matrix = sp.csr_array(parts, shape=(features.shape[0], features.shape[1])).tocsc()
    else:
        matrix = features.numpy()
    for start in range(0, features.shape[1], COLUMN_BLOCK):
        block = matrix[:, start : start + COLUMN_BLOCK]
        yield (block.toarray() if is_sparse(block) else block).astype(np.float64)
