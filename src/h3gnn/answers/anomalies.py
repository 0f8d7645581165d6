"""Anomaly detection: nodes whose features or edges their neighbours do not predict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import scipy.sparse as sp
import torch
from scipy.stats import norm, rankdata
from sklearn.linear_model import Ridge
from sklearn.model_selection import KFold

from h3gnn.answers.links import Neighbourhood, principal, reduced_features
from h3gnn.answers.similarity import unit_rows
from h3gnn.graphs.graph import Graph, node_order, reorder_nodes
from h3gnn.graphs.ids import check_ids
from h3gnn.graphs.scaling import scipy_features
from h3gnn.tables.encoders import COMPONENT, VALUE, NumberEncoder

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
COMPONENTS = 64
"""Features and their predictors are reduced to this many principal components."""
FOLDS, ALPHA = 5, 10.0
"""Folds and penalty of the ridge regressions that predict features of held-out nodes."""
LANDMARKS = 256
"""Models are compared by the similarity of each node to this many others."""
EXPLAINED, USUAL = 1_000, (0.05, 0.95)
"""Nodes, the most unusual ones, that get a reason; and the quantiles between which values are usual."""
MUCH_FURTHER, ALSO = 1.5, 3.0
"""How much further from its neighbours than from the median a value is, to be compared with them; distance of
a second column that is named."""
TWO_VALUED, NO_NUMBER = 10_000, 1e-6
"""Values that are looked at before all, and what counts as 0."""


def find_anomalies(
    graph: Graph,
    by_model: Floats,
    members: Sequence[str],
    difficulty: npt.NDArray[Any] | None = None,
    *,
    edges: bool = True,
) -> pd.DataFrame:
    """Return every node with its anomaly score and the parts of the score, the highest first.

    Columns: `node`, `score`, the two parts of the score, and two measures of training:

    - `features`: distance of the node's features from a prediction by its neighbours' features and
      embeddings;
    - `neighbours`: the sum of its distances to its neighbours, if `edges`;
    - `difficulty`: the percentile of its difficulty in training, mean over the models;
    - `disagreement`: how much the models differ in its neighbourhood; with several models only;
    - `reason`: of the first `EXPLAINED` nodes, the columns furthest from usual; see `unusual_columns`.

    With p the share of nodes with at least the same value of a part, the score is −log10 of the smaller p
    (Tippett's combination of tests). Difficulty and disagreement made it worse (docs/similarity.md).

    Args:
        graph: the graph of the embedding.
        by_model: the embedding, `[nodes, models, D]`.
        members: the objective of each model.
        difficulty: of the last epoch, `[models, nodes]`; None without training.
        edges: whether an edge between unlike nodes is unusual. It is not where edges only join the rows of a
            table that share a linked row, such as the lines of one order.
    """
    check_ids(graph.node_ids)
    order = node_order(graph)
    graph, by_model = reorder_nodes(graph, order), by_model[order]
    difficulty = None if difficulty is None else np.asarray(difficulty)[:, order]
    around, features = Neighbourhood(graph.edge_index, graph.num_nodes), reduced_features(graph, COMPONENTS)
    embedding = principal(by_model.reshape(len(by_model), -1), COMPONENTS)
    parts = {"features": feature_surprise(features, embedding, around)}
    if edges:
        parts["neighbours"] = edge_surprise(features, around)
    log_p = [-np.log10(rankdata(-one, "max") / len(one)) for one in parts.values()]
    if difficulty is not None:
        ranks = [rankdata(one) / len(one) for one in np.asarray(difficulty, dtype=np.float64)]
        parts["difficulty"] = np.mean(ranks, axis=0)
    if by_model.shape[1] > 1:
        parts["disagreement"] = disagreement(by_model, members)
    table = pd.DataFrame({"node": graph.node_ids, "score": np.max(log_p, axis=0), **parts, "reason": ""})
    first = np.argsort(-table["score"].to_numpy(), kind="stable")[:EXPLAINED]
    reasons = unusual_columns(graph, first, around)
    if edges:
        few, many = np.quantile(around.degree, USUAL)
        for at in np.flatnonzero((log_p[1] > log_p[0])[first] & (around.degree[first] > many)).tolist():
            reasons[at] = (
                f"{around.degree[first[at]]:,} neighbours (usual: {few:.0f} to {many:.0f}); {reasons[at]}"
            )
    table.loc[first, "reason"] = reasons
    return table.sort_values("score", ascending=False, kind="stable", ignore_index=True)


@dataclass(frozen=True)
class _Column:
    """A column that can be explained: its encoded values, and how they are shown."""

    name: str
    values: Doubles
    scale: NumberEncoder | None = None
    kind: str = "number"

    def shown(self, value: float) -> str:
        """Return an encoded value as it was before."""
        number = value if self.scale is None else float(self.scale.decode(np.array(value)))
        if self.kind == "date":
            return str(pd.Timestamp(0) + pd.Timedelta(round(number), "D")).split(" ", maxsplit=1)[0]
        if self.kind == "boolean":
            return "yes" if round(number) else "no"
        number = 0.0 if abs(number) < NO_NUMBER else float(f"{number:.6g}")  # of float32
        return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.4g}"


def _columns(graph: Graph) -> Iterator[_Column]:
    """Yield own columns without components, which have no meaning by themselves."""
    paths, stored = graph.path_columns, graph.features
    if paths is None or not paths.are_features:
        plan = graph.plan if graph.plan is not None and graph.plan.names == graph.feature_names else None
        matrix: Any = scipy_features(stored).tocsc() if stored.layout == torch.sparse_csr else None
        for at in range(graph.num_features):
            name, kind, scale = f"feature {at}", "number", None
            if graph.feature_names:
                name = str(graph.feature_names[at])
            if plan is not None:
                feature = plan.features[at]
                if feature.role == COMPONENT:
                    continue
                fitted, kind = feature.column.fitted, feature.column.kind
                scale = fitted if feature.role == VALUE and isinstance(fitted, NumberEncoder) else None
                kind = kind if scale is not None or fitted is None else "indicator"
            values = stored[:, at].numpy() if matrix is None else matrix[:, [at]].toarray().ravel()
            yield _Column(name, values.astype(np.float64), scale, kind)


def _link_columns(graph: Graph) -> Iterator[_Column]:
    links = graph.link_columns
    if links is not None:
        for name, scale, values in zip(links.names, links.plan.scales, links.values.T, strict=True):
            is_date = name.rpartition(".")[2] in ("first", "last")
            yield _Column(name, values.astype(np.float64), scale, "date" if is_date else "number")


def unusual_columns(graph: Graph, nodes: Integers, around: Neighbourhood) -> list[str]:
    """Return the most unusual values of some nodes, and what is usual: `quantity 100 (usual: 1 to 3)`.

    A number is as unusual as it is far from the median, or from the mean of its neighbours, in robust
    standard deviations; one of two values as it is rare. Usual are the middle nine tenths. Link columns, of
    which the score knows only through the embedding, are named where no own column is unusual.
    """
    own, linked = (_reasons(columns, nodes, around) for columns in (_columns(graph), _link_columns(graph)))
    texts = []
    for some in ([*one] or [*other] for one, other in zip(own, linked, strict=True)):
        first, *more = sorted(some, key=lambda reason: -reason[0]) or [(0.0, "no single column is unusual")]
        texts.append("; ".join([first[1], *(text for z, text in more[:1] if z >= ALSO)]))
    return texts


def _reasons(
    columns: Iterable[_Column], nodes: Integers, around: Neighbourhood
) -> list[list[tuple[float, str]]]:
    """Return unusual values of nodes, and how unusual they are."""
    found: list[list[tuple[float, str]]] = [[] for _ in nodes]
    mean = sp.diags_array(1 / np.maximum(around.degree, 1)) @ around.adjacency
    linked = around.degree > 0
    for column in columns:
        values, own = column.values, column.values[nodes]
        distinct = np.unique(values[:TWO_VALUED])
        two = len(distinct) <= 2 and bool(np.isin(values, distinct).all())
        low, high = np.quantile(values, USUAL)
        if two:
            share = np.array([(values == one).mean() for one in own])
            z = norm.isf(np.clip(share, 1e-300, 1) / 2)
        else:
            z = _distances(values, low, high)[nodes]
        expected = mean @ values
        apart = values - expected
        far = np.zeros(len(values))
        if linked.any() and not two:
            far[linked] = _distances(apart[linked], *np.quantile(apart[linked], USUAL))
        by_links = far[nodes] > MUCH_FURTHER * z
        for at in np.flatnonzero(np.maximum(z, far[nodes]) >= 1).tolist():
            value = "" if column.kind == "indicator" else f" {column.shown(own[at])}"
            no = "not " if column.kind == "indicator" and own[at] == 0 else ""
            usual = f"usual: {column.shown(low)} to {column.shown(high)}"
            if by_links[at]:
                usual = f"its neighbours: {column.shown(expected[nodes[at]])}"
            elif two:
                usual = f"{share[at]:.2g} of all" if share[at] < 0.001 else f"{share[at]:.1%} of all"
            text = f"{no}{column.name}{value} ({usual})"
            found[at].append((float(max(z[at], far[nodes[at]] * by_links[at])), text))
    return found


def _distances(values: Doubles, low: float, high: float) -> Doubles:
    """Return distances from the median in standard deviations of either side, as the quantiles have them."""
    centre, spread = float(np.median(values)), float(values.std())
    sides = [abs(end - centre) / norm.isf(1 - USUAL[1]) for end in (low, high)]
    below, above = (side if side > NO_NUMBER * max(spread, 1) else spread for side in sides)
    scale = np.where(values < centre, below, above)
    return np.asarray(np.abs(values - centre) / np.where(scale > NO_NUMBER, scale, np.inf))


def feature_surprise(features: Floats, embedding: Floats, around: Neighbourhood) -> Doubles:
    """Return the distance of each node's features from their prediction by its neighbours, out of fold.

    A node without neighbours gets the median.
    """
    mean = sp.diags_array(1 / np.maximum(around.degree, 1)) @ around.adjacency
    inputs = np.concatenate([mean @ features, mean @ embedding], axis=1)
    distance = np.full(len(features), np.nan)
    nodes = np.flatnonzero(around.degree > 0)
    if len(nodes) >= 2 * FOLDS:
        for train, test in KFold(FOLDS, shuffle=True, random_state=0).split(nodes):
            model = Ridge(alpha=ALPHA).fit(inputs[nodes[train]], features[nodes[train]])
            residual = features[nodes[test]] - model.predict(inputs[nodes[test]])
            distance[nodes[test]] = np.linalg.norm(residual, axis=1)
    median = np.nanmedian(distance) if np.isfinite(distance).any() else 0.0
    return np.where(np.isfinite(distance), distance, median)


def edge_surprise(features: Floats, around: Neighbourhood) -> Doubles:
    """Return the sum of 1 − cosine over the edges of each node."""
    unit = unit_rows(features)
    rows = np.repeat(np.arange(around.nodes), around.degree)
    cosine = np.empty(len(rows))
    for first in range(0, len(rows), 1 << 18):
        some = slice(first, first + (1 << 18))
        cosine[some] = (unit[rows[some]] * unit[around.adjacency.indices[some]]).sum(axis=1)
    return np.asarray(np.bincount(rows, weights=1 - cosine, minlength=around.nodes), dtype=np.float64)


def disagreement(by_model: Floats, members: Sequence[str]) -> Doubles:
    """Return 1 − the mean correlation between models of a node's similarities to the landmarks.

    Models with the same objective count as one, unless all have the same.
    """
    names = list(dict.fromkeys(members))
    groups = [[at for at, one in enumerate(members) if one == name] for name in names]
    if len(groups) < 2:
        groups = [[at] for at in range(len(members))]
    draw = np.random.default_rng(0)
    landmarks = draw.permutation(len(by_model))[:LANDMARKS]
    views = []
    for group in groups:
        rows = by_model[:, group].reshape(len(by_model), -1)
        rows = unit_rows(rows - rows.mean(axis=0))
        near = rows @ rows[landmarks].T
        views.append(unit_rows(near - near.mean(axis=1, keepdims=True)))
    pairs = [(views[a] * views[b]).sum(axis=1) for a in range(len(views)) for b in range(a + 1, len(views))]
    return np.asarray(1 - np.mean(pairs, axis=0, dtype=np.float64))
