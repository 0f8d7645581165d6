"""Everything a report shows about a fitted model, collected in one place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from h3gnn.encoder.tokens import token_names
from h3gnn.errors import InputError
from h3gnn.estimator import H3GNN
from h3gnn.experiments.columns import OwnColumns
from h3gnn.experiments.members import (
    WORDS,
    carried_by,
    class_carriers,
    describe_members,
    member_columns,
    member_difficulty,
    models_of_members,
)
from h3gnn.experiments.others import beside
from h3gnn.experiments.scoring import (
    Splits,
    all_as_compared,
    find_clusters,
    score_with_labels,
    score_without_labels,
)
from h3gnn.experiments.surroundings import model_edges, nearest_nodes
from h3gnn.graphs.graph import Graph, with_splits
from h3gnn.graphs.homophily import local_homophily, simple_edges
from h3gnn.ondisk.mapped import MappedGraph
from h3gnn.report.findings import (
    RAW,
    TRAINED,
    UNTRAINED,
    Category,
    Findings,
    Floats,
    Measure,
    RunLog,
    Scoreboard,
    Whole,
    member_representation,
)
from h3gnn.settings import kept_for
from h3gnn.storage.files import versions
from h3gnn.storage.origin import commit
from h3gnn.training.history import collapse_epochs

MOST_NODES = 50_000
"""A page shows at most so many nodes; of a larger graph, so many evenly spaced ones."""

MOST_RAW_VALUES = 200_000_000
"""Larger feature matrices are compared in their first 128 principal directions."""

NAMED_FEATURES = 12
"""Up to so many features that have names can be looked at one by one."""

SAY_NOTHING = ("edges", "features", "labels", "nodes", "links", "data", "graph", "x", "y")
"""File names that do not say what a graph is."""

Told = Callable[[str, float], None]
"""Told what is done next, and the share of the work that is done."""

SPLIT_NAMES = ("train", "validation", "test")

OWN = 2
"""The first so many tokens see a node's own features, the others its neighbours."""


def collect_findings(
    model: H3GNN,
    *,
    most_nodes: int = MOST_NODES,
    title: str | None = None,
    columns: OwnColumns | None = None,
    other: tuple[str, H3GNN] | None = None,
    told: Told = lambda words, share: None,
) -> Findings:
    """Return what is known about a fitted model.

    Args:
        model: fitted in memory.
        most_nodes: how many nodes to show; scores are always those of all nodes.
        title: of the page; by default what the graph is.
        columns: a table about the nodes, in the order of the graph's.
        other: another run, by its name, to stand beside this one.
        told: called with what is done next, and the share of all that is done.
    """
    refuse_files(model)
    graph = with_splits(model.graph_)
    told("an untrained encoder", 0.0)
    untrained = H3GNN(**{**model.get_params(), "epochs": 0, "verbose": False})
    embeddings = {
        RAW: raw_features(graph),
        UNTRAINED: untrained.fit_transform(graph),
        TRAINED: model.embedding_,
    }
    compared = None
    if other is not None:
        compared, embeddings[f"other run: {other[0]}"] = beside(model, graph, other[1], other[0])
    own = columns or OwnColumns()
    kept = np.unique(np.linspace(0, graph.num_nodes - 1, min(graph.num_nodes, most_nodes)).astype(np.int64))
    attention = token_attention(model)
    measures = node_measures(model, graph, attention)
    told("principal directions", 0.0)
    compared_rows, members = all_as_compared(embeddings), all_as_compared(member_columns(model))
    scores, categories = _judge(compared_rows, members, graph, measures, told)
    categories, measures = (
        (*categories, *own.categories),
        (*measures, *own.measures, *_features(model, graph)),
    )
    told("neighbours", 1.0)
    nearest, similarity = nearest_nodes(compared_rows[TRAINED][kept])
    heard, changes = model_edges(model, graph, kept)
    left_out = f"{len(kept):,} of {graph.num_nodes:,} nodes are shown, evenly spaced."
    return Findings(
        title=title or graph_title(graph),
        figures=_figures(graph, embeddings[TRAINED].shape[1]),
        ids=tuple(str(one) for one in graph.node_ids[kept]),
        embeddings={name: values[kept] for name, values in embeddings.items()},
        categories=tuple(Category(c.key, c.title, c.names, c.values[kept]) for c in categories),
        measures=tuple(Measure(m.key, m.title, m.values[kept]) for m in measures),
        tokens=token_names(model.hops),
        attention=None if attention is None else attention[kept],
        nearest=nearest,
        similarity=similarity,
        heard=heard,
        edge_changes=changes,
        scores=scores,
        run=run_log(model),
        shown="" if len(kept) == graph.num_nodes else left_out,
        texts={name: tuple(words[node] for node in kept) for name, words in own.texts},
        other=compared,
    )


def graph_title(graph: Graph) -> str:
    """Return what a graph is, in few words: its name, its nodes and what their classes are."""
    files = [Path(name) for name in graph.provenance.source.split(", ")]
    named = [one.stem for one in files] if all(one.suffix for one in files) else []
    telling = [name for name in named or [_call(graph.provenance.source)] if name.lower() not in SAY_NOTHING]
    about = f"{telling[0]}: " if telling else ""
    known = 0 if graph.labels is None else int((graph.labels >= 0).sum())
    classes = f" in {graph.num_classes} classes" if graph.num_classes > 3 else ""
    if 1 < graph.num_classes <= 3 and max(map(len, graph.class_names)) <= 20:
        *first, last = (f"class {one}" if one.isdecimal() else one for one in graph.class_names)
        classes = f", {', '.join(first)} or {last}"
    few = f" ({known:,} labelled)" if classes and known < graph.num_nodes else ""
    return f"{about}{graph.num_nodes:,} nodes{classes}{few}"


def _call(source: str) -> str:
    """Return the name of what made a graph, without what it was called with."""
    return source.split("(", maxsplit=1)[0].replace("_", " ").strip()


def _features(model: H3GNN, graph: Graph) -> tuple[Measure, ...]:
    """Return the features as measures, where they are few and have names."""
    names = getattr(model, "feature_names_in_", None)
    if names is None or len(names) != graph.num_features or graph.num_features > NAMED_FEATURES:
        return ()
    rows = graph.dense_features().double().numpy()
    return tuple(Measure(f"own_{name}", str(name), rows[:, at]) for at, name in enumerate(names))


def refuse_files(model: H3GNN) -> None:
    """Say why a graph in files has no page."""
    if isinstance(model.graph_, MappedGraph):
        raise InputError(
            "this run's graph lies in files, and a report needs it in memory: fit a part of it without "
            "`h3gnn prepare`, or draw the Parquet of `h3gnn embed` with another viewer"
        )


def token_attention(model: H3GNN) -> Floats | None:
    """Return the share of attention that each token of a node gets, `[nodes, tokens]`; rows sum to 1.

    The mean over models, heads and listening tokens. None for an encoder without attention.
    """
    if model.fusion == "mlp":
        return None
    shares: npt.NDArray[np.float32] = model.attention().mean(axis=(0, 2))
    return shares


def raw_features(graph: Graph) -> Floats:
    """Return the features as the data has them, dense; a very large matrix in 128 principal directions."""
    if graph.num_nodes * graph.num_features <= MOST_RAW_VALUES:
        dense: npt.NDArray[np.float32] = graph.dense_features().numpy()
        return dense
    import scipy.sparse as sp
    from sklearn.decomposition import TruncatedSVD

    rows: Any = graph.features
    if rows.layout == torch.sparse_csr:
        parts = (rows.values().numpy(), rows.col_indices().numpy(), rows.crow_indices().numpy())
        rows = sp.csr_array(parts, shape=(graph.num_nodes, graph.num_features))
    reduced: npt.NDArray[np.float32] = TruncatedSVD(128, random_state=0).fit_transform(rows)
    return reduced.astype(np.float32)


def run_log(model: H3GNN) -> RunLog:
    """Return what happened in training and what it came from."""
    history = model.history_
    sentences = []
    for which, epoch in collapse_epochs(history).items():
        at, ranks = history.measured("effective_rank")
        now = ranks[list(at).index(epoch), which]
        of = f" ({model.members_[which]})" if models_of_members(model) else ""
        who = f"Model {which}{of}: the" if model.n_models > 1 else "The"
        sentences.append(
            f"{who} representation collapsed: at epoch {epoch} its effective rank fell to {now:.1f} from "
            f"{ranks[0, which]:.1f}. Try fewer epochs, a smaller learning rate or a larger momentum."
        )
    made = {**versions(), "commit": commit()}
    return RunLog(
        columns=dict(history.columns),
        collapsed=" ".join(sentences),
        facts={"epochs": len(history), **model.cost_, **history.engine, "seeds": model.seeds_, **made},
        settings=kept_for("run", model.get_params()),
        provenance=model.graph_.provenance.as_dict(),
        members=describe_members(model),
    )


def _judge(
    embeddings: Mapping[str, Floats],
    members: Mapping[str, Floats],
    graph: Graph,
    measures: tuple[Measure, ...],
    told: Told,
) -> tuple[Scoreboard, tuple[Category, ...]]:
    """Return the scores, and what they say about each node."""
    clusters = find_clusters(embeddings[TRAINED], graph.labels)
    classes = node_classes(graph)
    scored = {**embeddings, **{member_representation(name): rows for name, rows in members.items()}}

    begun: list[str] = []

    def scoring(name: str) -> None:
        told(f"scoring {name}", len(begun) / len(scored))
        begun.append(name)

    if classes is None:
        scores = score_without_labels(scored, clusters, scoring)
        return _with_words(scores, members), (as_category(clusters),)
    splits = Splits.of(graph)
    homophily = next(one.values for one in measures if one.key == "homophily")
    scores, predicted_by = score_with_labels(scored, splits, classes.names, homophily, scoring)
    predicted = predicted_by[TRAINED][0]
    masks = (graph.train_mask, graph.val_mask, graph.test_mask)
    first = np.stack([mask[:, 0].numpy() for mask in masks if mask is not None])
    right = np.where(classes.values >= 0, predicted != classes.values, -1)
    categories = [
        classes,
        Category("predicted", "predicted class", classes.names, predicted),
        Category("wrong", "right or wrong", ("right", "wrong"), right),
        as_category(clusters),
        Category("split", "split", SPLIT_NAMES, np.where(first.any(axis=0), first.argmax(axis=0), -1)),
    ]
    if members:
        of_members = {name: predicted_by[member_representation(name)] for name in members}
        categories.append(carried_by(of_members, splits))
        scores = replace(scores, carriers=class_carriers(scores, list(members)))
    return _with_words(scores, members), tuple(categories)


def _with_words(scores: Scoreboard, members: Mapping[str, Floats]) -> Scoreboard:
    """Say what the rows of members are, where there are some."""
    return replace(scores, protocol=scores.protocol + WORDS) if members and scores.rows else scores


def node_classes(graph: Graph) -> Category | None:
    """Return the class of each node, None without labels; a class that is only called 3 is "class 3"."""
    if graph.labels is None or not bool((graph.labels >= 0).any()):
        return None
    names = (f"class {name}" if name.isdecimal() else name for name in graph.class_names)
    return Category("class", "class", tuple(names), graph.labels.numpy())


def node_clusters(model: H3GNN) -> Category:
    """Return the cluster of each node, found by k-means."""
    return as_category(find_clusters(model.embedding_, model.graph_.labels))


def as_category(clusters: Whole) -> Category:
    """Return clusters named by size, the largest first."""
    sizes = np.bincount(clusters)
    place = np.argsort(np.argsort(-sizes, kind="stable"), kind="stable")
    return Category("cluster", "cluster", tuple(f"cluster {i}" for i in range(len(sizes))), place[clusters])


def node_measures(model: H3GNN, graph: Graph, attention: Floats | None) -> tuple[Measure, ...]:
    """Return what is measured at each node: homophily, degree, difficulty, attention of its tokens."""
    neighbours = simple_edges(graph.edge_index, graph.num_nodes)[0].numpy()
    degree = np.bincount(neighbours, minlength=graph.num_nodes).astype(np.float64)
    measures = [Measure("degree", "degree", degree)]
    if graph.labels is not None and node_classes(graph) is not None:
        homophily = local_homophily(graph.edge_index, graph.labels).numpy()
        measures.insert(0, Measure("homophily", "local homophily", homophily))
    if model.history_.difficulty is not None and models_of_members(model):
        measures += member_difficulty(model)
    elif model.history_.difficulty is not None:
        difficulty = model.history_.difficulty.float().mean(dim=0).numpy()
        measures.append(Measure("difficulty", "difficulty, last epoch", difficulty))
    if attention is not None:
        names = token_names(model.hops)
        keys = ("linear", "mlp", *(f"hop{k + 1}" for k in range(model.hops)))
        measures.append(Measure("attention", "attention to neighbours", attention[:, OWN:].sum(axis=1)))
        measures += [
            Measure(f"attention_{key}", f"attention: {name}", attention[:, token])
            for token, (key, name) in enumerate(zip(keys, names, strict=True))
        ]
    return tuple(measures)


def _figures(graph: Graph, dimensions: int) -> dict[str, int]:
    figures = {"nodes": graph.num_nodes, "edges": graph.num_edges, "features": graph.num_features}
    if graph.num_classes:
        figures["classes"] = graph.num_classes
    return figures | {"dimensions": dimensions}
