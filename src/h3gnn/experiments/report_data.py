"""Collect everything that a report shows about a fitted model."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from scipy.stats import rankdata

from h3gnn.answers.similarity import MANY_NODES, nearest_to_all
from h3gnn.errors import InputError
from h3gnn.estimator import H3GNN
from h3gnn.experiments import scoring
from h3gnn.experiments.report_columns import OwnColumns
from h3gnn.experiments.scoring import Splits
from h3gnn.graphs.graph import Graph, node_order, with_splits
from h3gnn.graphs.ids import match_by_id_or_position
from h3gnn.graphs.link_columns import JoinedColumn, joined_lines
from h3gnn.graphs.profile import local_homophily, simple_edges
from h3gnn.graphs.scaling import scipy_features
from h3gnn.report.findings import (
    RAW,
    TRAINED,
    UNTRAINED,
    BestMember,
    Category,
    EdgeChange,
    Findings,
    Floats,
    Measure,
    Member,
    NeighborWeights,
    OtherRun,
    RunLog,
    Scoreboard,
    TypeFacts,
    Whole,
    member_representation,
)
from h3gnn.settings import kept_for
from h3gnn.storage.atomic import versions
from h3gnn.storage.runs import commit
from h3gnn.training.history import collapse_epochs, effective_rank, sample_rows

NEAREST, FEWER_NEAREST = 10, 6
"""Number of nearest nodes, and their number in a large graph."""
MOST_WEIGHTS = 300_000
"""With more edge weights than this, each node keeps those that training changed most."""
MOST_NODES = 50_000
"""Maximum number of nodes on a page; of a larger graph, evenly spaced ones are shown."""
MOST_RAW_VALUES = 200_000_000
"""Larger feature matrices are compared in their first 128 principal directions."""
NAMED_FEATURES = 12
"""Maximum number of named features that are shown one by one."""
GENERIC_NAMES = ("edges", "features", "labels", "nodes", "links", "data", "graph", "x", "y")
"""File names that do not identify a graph."""
OWN_TOKENS = 2
"""Number of tokens of a node's own features; the others belong to its neighbours."""

Watch = Callable[[str, float], None]
"""Receives the next step and the share of the work that is done."""


def collect_findings(
    model: H3GNN,
    *,
    most_nodes: int = MOST_NODES,
    title: str | None = None,
    columns: OwnColumns | None = None,
    other: tuple[str, H3GNN] | None = None,
    predictions: dict[str, Any] | None = None,
    names: Mapping[str, str] | None = None,
    watch: Watch = lambda words, share: None,
) -> Findings:
    """Return the data of a report about a fitted model.

    Args:
        model: fitted in memory.
        most_nodes: maximum number of shown nodes; scores use all nodes.
        title: of the page; by default a description of the graph.
        columns: a table about the nodes, in the order of the graph's.
        other: name and model of another run to compare with.
        predictions: the summary of predictions from this run.
        names: of nodes by id.
        watch: receives the next step, and the share of the work that is done.
    """
    check_in_memory(model)
    graph, own = with_splits(model.graph_), columns or OwnColumns()
    watch("an untrained encoder", 0.0)
    untrained = H3GNN.from_settings({**model.get_settings(), "epochs": 0, "verbose": False})
    embeddings = {RAW: raw_features(graph), UNTRAINED: untrained.fit_transform(graph)}
    embeddings[TRAINED] = model.embedding_
    compared = None
    if other is not None:
        compared, embeddings[f"other run: {other[0]}"] = compare_run(model, graph, other[1], other[0])
    spaced = np.linspace(0, graph.num_nodes - 1, min(graph.num_nodes, most_nodes)).astype(np.int64)
    kept = np.unique(node_order(graph)[spaced])
    tables = type_facts(model)
    # without links, every token is made of a node's own features
    attention = token_attention(model) if graph.num_edges or (tables and tables.paths) else None
    measures = node_measures(model, graph, attention)
    watch("principal directions", 0.0)
    reduced, members = scoring.reduce_all(embeddings), scoring.reduce_all(member_columns(model))
    scores, categories = _score(reduced, members, graph, measures, watch)
    categories = (*categories, *own.categories)
    measures = (*measures, *own.measures, *(() if tables and columns else _features(model, graph)))
    watch("neighbours", 1.0)
    count = NEAREST if len(kept) <= MANY_NODES else FEWER_NEAREST
    nearest, similarity = nearest_to_all(reduced[TRAINED][kept], count)
    weights, changes = model_edges(model, graph, kept)
    figures = {"nodes": graph.num_nodes, "edges": graph.num_edges, "features": graph.num_features}
    figures |= {"classes": graph.num_classes} if graph.num_classes else {}
    figures |= (
        {} if tables is None else {"joined columns": len(joined_columns(graph)), "paths": len(tables.paths)}
    )
    left_out = f"{len(kept):,} of {graph.num_nodes:,} nodes are shown, evenly spaced."
    return Findings(
        title=title or graph_title(graph),
        figures={**figures, "dimensions": model.embedding_.shape[1]},
        ids=tuple(str(one) for one in graph.node_ids[kept]),
        embeddings={name: values[kept] for name, values in embeddings.items()},
        categories=tuple(replace(one, values=one.values[kept]) for one in categories),
        measures=tuple(replace(one, values=one.values[kept]) for one in measures),
        tokens=model.token_names,
        attention=None if attention is None else attention[kept],
        nearest=nearest,
        similarity=similarity,
        neighbors=weights,
        edge_changes=changes,
        scores=scores,
        run=run_log(model),
        shown="" if len(kept) == graph.num_nodes else left_out,
        texts={name: tuple(words[node] for node in kept) for name, words in own.texts},
        other=compared,
        predictions=predictions,
        names=tuple(names.get(str(one), "") for one in graph.node_ids[kept]) if names else (),
        tables=tables,
    )


def joined_columns(graph: Graph) -> tuple[JoinedColumn, ...]:
    """Return the columns that are joined from linked rows."""
    return () if graph.link_columns is None else graph.link_columns.plan.joined


def type_facts(model: H3GNN) -> TypeFacts | None:
    """Return what describes the rows of a type of several linked tables; None for another graph."""
    graph = model.graph_
    if not (graph.relation_names or graph.path_columns is not None or joined_columns(graph)):
        return None
    kind, paths = graph.provenance.source.rpartition(": ")[2], dict[str, int]()
    if graph.path_columns is not None:
        paths = dict(zip(graph.path_columns.titles, graph.path_columns.widths, strict=True))
    counts = [] if graph.relations is None else graph.relations.sum(dim=1).tolist()
    return TypeFacts(
        kind,
        tuple(_end_of(one) if one in paths else kind for one in model.token_names),
        tuple(zip(graph.relation_names, counts, strict=True)),
        tuple(paths.items()),
        tuple(
            (path, source.partition(".")[2] or "rows", what)
            for source, path, what in joined_lines(joined_columns(graph))
        ),
        tuple(one.message for one in graph.provenance.repairs),
    )


def _end_of(path: str) -> str:
    """Return the type at the end of a path such as `account > district via order`."""
    last = path.rpartition(" > ")[2].partition(" via ")[0]
    return re.sub(r" \([^()]*\)$", "", last)


def check_in_memory(model: H3GNN) -> None:
    """Reject a graph on disk."""
    if not model.graph_.in_memory:
        raise InputError(
            "this run's graph lies in files, and a report needs it in memory: fit a part of it without "
            "`h3gnn prepare`, or draw the Parquet of `h3gnn embed` with another viewer",
            code="graph-on-disk",
        )


def compare_run(model: H3GNN, graph: Graph, other: H3GNN, name: str) -> tuple[OtherRun, Floats]:
    """Return the differences of another run, and its embedding of this run's nodes, `[nodes, D]`."""
    there = other.graph_
    if not there.in_memory:
        message = f"the graph of {name} lies in files, and a report needs it in memory"
        raise InputError(message, code="graph-on-disk")
    if not (graph.has_ids or there.has_ids) and graph.num_nodes != there.num_nodes:
        raise InputError(
            f"{name} has {there.num_nodes:,} nodes and this run {graph.num_nodes:,}, and none has ids, so "
            "that they cannot be matched",
            code="runs-not-comparable",
        )
    position = match_by_id_or_position(there, graph)
    missing = np.flatnonzero(position < 0)
    if missing.size:
        raise InputError(
            f"{name} has no node {graph.node_ids[missing[0]]} ({missing.size:,} of {graph.num_nodes:,} nodes "
            "are missing there); if this run has the newer, larger graph, give the other one first",
            code="runs-not-comparable",
        )
    mine, theirs = (kept_for("run", one.get_settings()) for one in (model, other))
    different = {key: (value, theirs.get(key)) for key, value in mine.items() if value != theirs.get(key)}
    notes: tuple[str, ...] = ()
    if there.provenance.sha256 != model.graph_.provenance.sha256:
        notes = (f"the graph: {there.num_nodes:,} nodes, {there.num_edges:,} edges there",)
    return OtherRun(f"other run: {name}", different, notes), other.embedding_[position]


def model_edges(
    model: H3GNN, graph: Graph, kept: Whole
) -> tuple[NeighborWeights | None, tuple[EdgeChange, ...]]:
    """Return the edge weights of each node, and their changes where training learned them."""
    edges = model.encoder_.edges
    if edges.kind == "computed":  # recomputed in each pass
        return None, ()
    pattern, start = model.support_.pattern, model.support_.start.cpu().numpy()
    receivers, sources = pattern.rows.cpu().numpy(), pattern.cols.cpu().numpy()
    if edges.kind == "fixed":
        return neighbor_weights(receivers, sources, start, start, kept), ()
    learned = edges.to_weight(edges.logit.detach().cpu()).mean(dim=0).numpy()
    labels = None if graph.labels is None else graph.labels.numpy()
    changes = edge_changes(receivers, sources, learned, start, labels)
    return neighbor_weights(receivers, sources, learned, start, kept), changes


def neighbor_weights(
    receivers: Whole, sources: Whole, weight: Floats, start: Floats, kept: Whole, most: int = MOST_WEIGHTS
) -> NeighborWeights:
    """Return the incoming edge weights of each kept node; of more than `most`, those that changed most.

    Entries are sorted by receiver, `kept` is ascending; both ends of an entry must be kept.
    """
    nodes = max(int(ends.max(initial=-1)) for ends in (kept, receivers, sources)) + 1
    position = np.full(nodes, -1)
    position[kept] = np.arange(len(kept))
    total = np.bincount(receivers, minlength=nodes)[kept]
    inside = (position[receivers] >= 0) & (position[sources] >= 0)
    to, who = position[receivers[inside]], position[sources[inside]]
    now, before = weight[inside], start[inside]
    if len(to) > most:
        ratio = np.maximum(now / before, np.finfo(np.float32).tiny)  # an unbounded weight may change sign
        rank = pd.Series(np.abs(np.log(ratio))).groupby(to).rank(method="first", ascending=False)
        fits = rank.to_numpy() <= _largest_share(np.bincount(to, minlength=len(kept)), most)
        to, who, now, before = to[fits], who[fits], now[fits], before[fits]
    crow = np.concatenate([[0], np.cumsum(np.bincount(to, minlength=len(kept)))])
    return NeighborWeights(crow, who, now, before, total)


def _largest_share(counts: Whole, most: int) -> int:
    """Return the largest number of entries per node, at least 1, with at most `most` entries in all."""
    shares = range(1, int(counts.max(initial=1)) + 1)
    return max(1, bisect_right(shares, most, key=lambda share: int(np.minimum(counts, share).sum())))


def edge_changes(
    receivers: Whole, sources: Whole, weight: Floats, start: Floats, labels: Whole | None
) -> tuple[EdgeChange, ...]:
    """Return how training changed the weights of all edges, and of those within and between classes."""
    other, change = receivers != sources, weight / start - 1
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


def models_of_members(model: H3GNN) -> dict[str, list[int]]:
    """Return the models of each objective; empty where all models have the same."""
    names = list(dict.fromkeys(model.members_))
    if len(names) < 2:
        return {}
    return {name: [at for at, one in enumerate(model.members_) if one == name] for name in names}


def member_columns(model: H3GNN) -> dict[str, Floats]:
    """Return each member's own columns of the joined embedding, `[nodes, its models · D]`."""
    nodes = len(model.embedding_)
    by_model = model.by_model()
    return {name: by_model[:, some].reshape(nodes, -1) for name, some in models_of_members(model).items()}


def describe_members(model: H3GNN) -> tuple[Member, ...]:
    """Return each member's last loss, the rank of its columns, and its share of the joined embedding."""
    some, history = node_order(model.graph_)[sample_rows(len(model.embedding_))], model.history_
    ranks = {
        name: float(effective_rank(torch.from_numpy(columns)[some][None]))
        for name, columns in member_columns(model).items()
    }
    total, members = sum(ranks.values()), []
    for name, models in models_of_members(model).items():
        loss = float(history["loss"][-1, models].mean()) if len(history) else float("nan")
        members.append(Member(name, tuple(models), loss, ranks[name], ranks[name] / total))
    return tuple(members)


def member_difficulty(model: H3GNN) -> tuple[Measure, ...]:
    """Return the percentile of each node's difficulty for each member, after the mean over members.

    Percentiles, since the losses of members have different units.
    """
    difficulty = model.history_.difficulty
    assert difficulty is not None
    of = {
        name: 100 * rankdata(difficulty[models].float().mean(dim=0).numpy(), "max") / difficulty.shape[1]
        for name, models in models_of_members(model).items()
    }
    whole = Measure("difficulty", "difficulty, mean percentile", np.mean(list(of.values()), axis=0))
    each = (Measure(f"difficulty_{name}", f"difficulty for {name}, percentile", of[name]) for name in of)
    return (whole, *each)


def carried_by(predicted: Mapping[str, npt.NDArray[np.int64]], splits: Splits) -> Category:
    """Return which members classify each node correctly; -1 for a node that is never tested.

    A member does if its probe is correct in more than half of the splits that test the node. `predicted`
    holds the classes of each member's probes, `[splits, nodes]`.
    """
    tested, labels = splits.tested, splits.labels.numpy()
    times = tested.sum(axis=0)
    right = np.stack([2 * ((one == labels) & tested).sum(axis=0) > times for one in predicted.values()])
    # with two before them, members have the colours on a map that they have in the charts
    names = ("all members", "several members", *(f"{name} alone" for name in predicted), "no member")
    count = right.sum(axis=0)
    cases = [count == len(right), count == 1, count == 0]
    values = np.select(cases, [0, 2 + right.argmax(axis=0), len(names) - 1], default=1)
    return Category("carried", "correct members", names, np.where(times > 0, values, -1))


def best_members(scores: Scoreboard, members: Sequence[str]) -> tuple[BestMember, ...]:
    """Return the best member for each tested class, and its lead over the next one."""
    by_class = {row.representation: np.asarray(row.by_class) for row in scores.rows}
    tested, found = np.asarray(scores.class_counts), []
    for position in np.flatnonzero(tested):
        own = {name: float(by_class[member_representation(name)][position]) for name in members}
        next_best, best = sorted(own.values())[-2:]
        found.append(
            BestMember(
                class_name=scores.class_names[position],
                tested=int(tested[position]),
                members=tuple(name for name, accuracy in own.items() if accuracy == best),
                accuracy=best,
                margin=best - next_best,
                whole=float(by_class[TRAINED][position]),
            )
        )
    return tuple(found)


def graph_title(graph: Graph) -> str:
    """Return a short description of a graph: name, number of nodes, classes."""
    source = graph.provenance.source
    files = [Path(name) for name in source.split(", ")]
    if all(one.suffix for one in files):
        names = [one.stem for one in files]
    else:  # the name of a benchmark, or of the function that made the graph
        names = [source.split("(", maxsplit=1)[0].replace("_", " ").strip()]
    place, _, kind = source.rpartition(": ")
    if place:  # a type of several tables
        names = [f"{Path(place).stem}, {kind}"]
    about = next((f"{name}: " for name in names if name.lower() not in GENERIC_NAMES), "")
    known = 0 if graph.labels is None else int((graph.labels >= 0).sum())
    classes = f" in {graph.num_classes} classes" if graph.num_classes > 3 else ""
    if 1 < graph.num_classes <= 3 and max(map(len, graph.class_names)) <= 20:
        *first, last = map(_class_name, graph.class_names)
        classes = f", {', '.join(first)} or {last}"
    few = f" ({known:,} labelled)" if classes and known < graph.num_nodes else ""
    return f"{about}{graph.num_nodes:,} nodes{classes}{few}"


def _class_name(name: str) -> str:
    return f"class {name}" if name.isdecimal() else name


def _features(model: H3GNN, graph: Graph) -> tuple[Measure, ...]:
    """Return few, named features as measures."""
    names = getattr(model, "feature_names_in_", None)
    if names is None or len(names) != graph.num_features or graph.num_features > NAMED_FEATURES:
        return ()
    rows, encoded = graph.dense_features().double().numpy(), graph.plan is not None and not graph.plan.as_is
    words = ", scaled" if encoded else ""
    return tuple(Measure(f"own_{name}", f"{name}{words}", rows[:, at]) for at, name in enumerate(names))


def token_attention(model: H3GNN) -> Floats | None:
    """Return the share of attention that each token of a node gets, `[nodes, tokens]`; rows sum to 1.

    The mean over models, heads and query tokens. None for an encoder without attention.
    """
    if model.get_settings()["fusion"] == "mlp":
        return None
    shares: npt.NDArray[np.float32] = model.attention().mean(axis=(0, 2))
    return shares


def raw_features(graph: Graph) -> Floats:
    """Return the dense features; of a very large matrix, 128 principal components."""
    if graph.num_nodes * graph.num_features <= MOST_RAW_VALUES:
        dense: npt.NDArray[np.float32] = graph.dense_features().numpy()
        return dense
    from sklearn.decomposition import TruncatedSVD

    rows: Any = graph.features
    rows = scipy_features(rows) if rows.layout == torch.sparse_csr else rows
    reduced: npt.NDArray[np.float32] = TruncatedSVD(128, random_state=0).fit_transform(rows)
    return reduced.astype(np.float32)


def run_log(model: H3GNN) -> RunLog:
    """Return the log of a training and its provenance."""
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
    facts = {"epochs": len(history), **model.cost_, **history.engine, "seeds": model.seeds_}
    return RunLog(
        columns=dict(history.columns),
        collapsed=" ".join(sentences),
        facts={**facts, **versions(), "commit": commit()},
        settings=kept_for("run", model.get_settings()),
        provenance=model.graph_.provenance.as_dict(),
        members=describe_members(model),
    )


def _score(
    embeddings: Mapping[str, Floats],
    members: Mapping[str, Floats],
    graph: Graph,
    measures: tuple[Measure, ...],
    watch: Watch,
) -> tuple[Scoreboard, tuple[Category, ...]]:
    """Return the scores, and the categories of nodes that come from them."""
    clusters = scoring.find_clusters(embeddings[TRAINED], graph.labels)
    classes, own_name = node_classes(graph), member_representation
    scored = {**embeddings, **{own_name(name): rows for name, rows in members.items()}}
    begun: list[str] = []

    def begin(name: str) -> None:
        watch(f"scoring {name}", len(begun) / len(scored))
        begun.append(name)

    categories = [as_category(clusters)]
    if classes is None:
        scores = scoring.score_without_labels(scored, clusters, begin)
    else:
        splits = Splits.of(graph)
        unknown = np.full(graph.num_nodes, np.nan)
        homophily = next((one.values for one in measures if one.key == "homophily"), unknown)
        scores, predicted = scoring.score_with_labels(scored, splits, classes.names, homophily, begin)
        categories = _label_categories(graph, classes, categories[0], predicted[TRAINED][0])
        if members:
            categories.append(carried_by({name: predicted[own_name(name)] for name in members}, splits))
            scores = replace(scores, best_members=best_members(scores, list(members)))
    if members and scores.rows:
        words = f" {own_name('…')} uses the columns of that member alone."
        scores = replace(scores, protocol=scores.protocol + words)
    return scores, tuple(categories)


def _label_categories(
    graph: Graph, classes: Category, clusters: Category, predicted: Whole
) -> list[Category]:
    """Return the class, its prediction in the first split, the cluster and the split of each node."""
    masks = (graph.train_mask, graph.val_mask, graph.test_mask)
    first = np.stack([mask[:, 0].numpy() for mask in masks if mask is not None])
    wrong = np.where(classes.values >= 0, predicted != classes.values, -1)
    split = np.where(first.any(axis=0), first.argmax(axis=0), -1)
    return [
        classes,
        Category("predicted", "predicted class", classes.names, predicted),
        Category("wrong", "right or wrong", ("right", "wrong"), wrong),
        clusters,
        Category("split", "split", ("train", "validation", "test"), split),
    ]


def node_classes(graph: Graph) -> Category | None:
    """Return the class of each node, None without labels; the class "3" is shown as "class 3"."""
    if graph.labels is None or not bool((graph.labels >= 0).any()):
        return None
    return Category("class", "class", tuple(map(_class_name, graph.class_names)), graph.labels.numpy())


def node_clusters(model: H3GNN) -> Category:
    """Return the cluster of each node, found by k-means."""
    return as_category(scoring.find_clusters(model.embedding_, model.graph_.labels))


def as_category(clusters: Whole) -> Category:
    """Return clusters named by size, the largest first."""
    sizes = np.bincount(clusters)
    rank = np.argsort(np.argsort(-sizes, kind="stable"), kind="stable")
    return Category("cluster", "cluster", tuple(f"cluster {i}" for i in range(len(sizes))), rank[clusters])


def node_measures(model: H3GNN, graph: Graph, attention: Floats | None) -> tuple[Measure, ...]:
    """Return the measures of each node: homophily, degree, difficulty, attention of its tokens."""
    neighbours = simple_edges(graph.edge_index, graph.num_nodes)[0].numpy()
    degree = np.bincount(neighbours, minlength=graph.num_nodes).astype(np.float64)
    measures = [Measure("degree", "degree", degree)] if len(neighbours) else []
    if len(neighbours) and node_classes(graph) is not None:
        assert graph.labels is not None
        homophily = local_homophily(graph.edge_index, graph.labels).numpy()
        measures.insert(0, Measure("homophily", "local homophily", homophily))
    if graph.targets is not None:
        title = graph.target_name or "the number to predict"
        measures.insert(0, Measure("target", title, graph.targets.double().numpy()))
    if model.history_.difficulty is not None and models_of_members(model):
        measures += member_difficulty(model)
    elif model.history_.difficulty is not None:
        difficulty = model.history_.difficulty.float().mean(dim=0).numpy()
        measures.append(Measure("difficulty", "difficulty, last epoch", difficulty))
    if attention is not None:
        names, typed = model.token_names, type_facts(model) is not None
        each, others = ("path", "linked rows") if typed else ("hop", "neighbours")
        keys = ("linear", "mlp", *(f"{each}{k + 1}" for k in range(len(names) - OWN_TOKENS)))
        to_others = attention[:, OWN_TOKENS:].sum(axis=1)
        measures.append(Measure("attention", f"attention to {others}", to_others))
        for token, (key, name) in enumerate(zip(keys, names, strict=True)):
            measures.append(Measure(f"attention_{key}", f"attention: {name}", attention[:, token]))
    return tuple(measures)
