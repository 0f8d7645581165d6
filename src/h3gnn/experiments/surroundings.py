"""What stands around each node: its nearest nodes in the embedding, and whom it hears in the graph."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from h3gnn.answers.similarity import MANY_NODES, nearest_to_all
from h3gnn.estimator import H3GNN
from h3gnn.graphs.graph import Graph
from h3gnn.report.findings import EdgeChange, Floats, Heard, Whole

NEAREST, FEWER_NEAREST = 10, 6
"""How many nearest nodes are looked up, and how many where there are many nodes."""

MOST_HEARD = 300_000
"""Beyond so many entries, each node keeps those that training changed most."""


def nearest_nodes(embedding: Floats, count: int | None = None) -> tuple[Whole, Floats]:
    """Return each node's nearest other nodes and their cosine similarity, as `nearest_to_all` does."""
    count = count or (NEAREST if len(embedding) <= MANY_NODES else FEWER_NEAREST)
    return nearest_to_all(embedding, count)


def model_edges(model: H3GNN, graph: Graph, kept: Whole) -> tuple[Heard | None, tuple[EdgeChange, ...]]:
    """Return whom each node hears, and what training did to the edges where it learned their weights."""
    edges = model.encoder_.edges
    if edges.kind == "computed":  # their weights are made anew in each pass, and not kept
        return None, ()
    pattern, start = model.support_.pattern, model.support_.start.cpu().numpy()
    receivers, sources = pattern.rows.cpu().numpy(), pattern.cols.cpu().numpy()
    if edges.kind == "fixed":
        return heard_by(receivers, sources, start, start, kept), ()
    learned = edges.strength(edges.logit.detach().cpu()).mean(dim=0).numpy()
    labels = None if graph.labels is None else graph.labels.numpy()
    heard = heard_by(receivers, sources, learned, start, kept)
    return heard, edge_changes(receivers, sources, learned, start, labels)


def heard_by(
    receivers: Whole, sources: Whole, weight: Floats, start: Floats, kept: Whole, most: int = MOST_HEARD
) -> Heard:
    """Return whom each kept node hears, the most strongly changed first where not all fit.

    Args:
        receivers, sources: node numbers of each entry, sorted by receiver.
        weight, start: learned weight of each entry and its start.
        kept: which nodes are shown, ascending; both ends of an entry have to be.
        most: how many entries to keep over all nodes.
    """
    nodes = int(kept.max()) + 1 if len(kept) else 0
    place = np.full(max(nodes, int(receivers.max(initial=-1)) + 1, int(sources.max(initial=-1)) + 1), -1)
    place[kept] = np.arange(len(kept))
    total = np.bincount(receivers, minlength=len(place))[kept]
    inside = (place[receivers] >= 0) & (place[sources] >= 0)
    to, who, now, before = place[receivers[inside]], place[sources[inside]], weight[inside], start[inside]
    if len(to) > most:
        ratio = np.maximum(now / before, np.finfo(np.float32).tiny)  # a weight without bounds may change sign
        changed = pd.Series(np.abs(np.log(ratio))).groupby(to).rank(method="first", ascending=False)
        fits = changed.to_numpy() <= _largest_share(np.bincount(to, minlength=len(kept)), most)
        to, who, now, before = to[fits], who[fits], now[fits], before[fits]
    crow = np.concatenate([[0], np.cumsum(np.bincount(to, minlength=len(kept)))])
    return Heard(crow, who, now, before, total)


def edge_changes(
    receivers: Whole, sources: Whole, weight: Floats, start: Floats, labels: Whole | None
) -> tuple[EdgeChange, ...]:
    """Return how training changed the weights of all edges, and of those within and between classes."""
    other = receivers != sources
    change = weight / start - 1
    kinds: dict[str, npt.NDArray[np.bool_]] = {"all edges": other}
    if labels is not None:
        known = other & (labels[receivers] >= 0) & (labels[sources] >= 0)
        same = labels[receivers] == labels[sources]
        kinds |= {"within a class": known & same, "between classes": known & ~same}
    return tuple(
        EdgeChange(kind, int(chosen.sum()), float(change[chosen].mean()), float((change[chosen] < 0).mean()))
        for kind, chosen in kinds.items()
        if chosen.any()
    )


def _largest_share(counts: Whole, most: int) -> int:
    """Return how many entries each node may keep so that no more than `most` are kept in all."""
    low, high = 1, int(counts.max(initial=1))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if int(np.minimum(counts, middle).sum()) <= most else (low, middle - 1)
    return low
