"""The graph of one node type: its own columns, links among its nodes, and what paths to other types say.

Two nodes of a type are linked if a row refers from one to the other, or if both link to the same node of
another type. Each kind of link is a relation of the graph, for which the encoder has tokens of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch

from h3gnn.errors import GraphError, check_choice, counted, shortened
from h3gnn.graphs.graph import MASKS, Graph, with_hash
from h3gnn.graphs.joins import JoinPlan, joined_columns
from h3gnn.graphs.provenance import Repair
from h3gnn.graphs.relational import (
    MOST_HOPS,
    MOST_PATHS,
    UNKNOWN_TIME,
    WIDE,
    NodeTable,
    Path,
    PathFeatures,
    RelationalGraph,
    Step,
    key_of,
)
from h3gnn.graphs.structural import build_graph, structural_features
from h3gnn.graphs.targets import AUTO, read_labels
from h3gnn.tables.infer import Cells
from h3gnn.tables.leaks import Target

if TYPE_CHECKING:
    from h3gnn.tables.plan import TablePlan

Integers = npt.NDArray[np.int64]
MOST_RELATIONS = 3
"""Relations between the nodes of a type that the encoder has tokens for."""
NEIGHBOURS = 20
"""Links of a node to others that share a node with it, for each relation."""
LEAST_ALIKE = 0.25
"""Share of the best relation's similarity of features that another needs to be used."""
PAIRS = 20_000
"""Links from which the similarity of a relation is estimated."""
LABEL_TIMES = ("row", "now")


@dataclass(frozen=True, eq=False)
class PathColumns:
    """Means of features along paths, as columns of the nodes of a type.

    Attributes:
        values: float32 `[nodes, columns]`; the columns of each path have a mean squared row length of 1.
        titles: of the paths, such as `account > district`.
        widths: number of columns of each path.
        are_features: whether the features of the nodes begin with them, since there are no own columns.
    """

    values: npt.NDArray[np.float32]
    titles: tuple[str, ...]
    widths: tuple[int, ...]
    are_features: bool = False


@dataclass(frozen=True, eq=False)
class NodeLinks:
    """Links among the nodes of a type, `[2, links]` with sources above targets, and their relation."""

    title: str
    ends: Integers

    @property
    def both_ways(self) -> Integers:
        """Links in both directions, each once."""
        pairs = np.concatenate([self.ends, self.ends[::-1]], axis=1)
        return np.unique(pairs[:, pairs[0] != pairs[1]], axis=1)


def type_view(
    graph: RelationalGraph,
    name: str,
    *,
    label: str | None = None,
    task: str = AUTO,
    label_time: str | None = None,
    longest: int = MOST_HOPS,
    most_paths: int = MOST_PATHS,
    fitted: tuple[RelationalGraph, Graph] | None = None,
) -> Graph:
    """Return the graph of one node type.

    Args:
        graph: all types.
        name: the type.
        label: the column to predict, one of the type's `labels`.
        task: "classification", "regression", or "auto" by the values.
        label_time: of rows with a time, "row" if the label is of that time, so that no later row may count,
            or "now" if it is of today; None if no row is later.
        longest: hops of the longest path to other types.
        most_paths: number of paths whose means are columns.
        fitted: the same tables without some rows, and the graph of the type there, made with the same
            arguments: its relations, paths, scaling and joined columns are used.

    Raises:
        GraphError: if `label_time` is missing, and some rows are linked to later ones.
    """
    before = None if fitted is None else PathFeatures(fitted[0], name)
    table, features = graph.type(name), PathFeatures(graph, name, before)
    if fitted is not None:
        for one in fitted[0].types:
            features.known(one)  # rejects tables from which rows are missing
    asks = label is not None or label_time is not None
    at_row_time = asks and uses_row_times(before or features, label_time)
    alone = not at_row_time and _is_alone(before or features)
    known: dict[str, Any] = {"node_ids": table.ids if table.has_ids else None}
    chosen, left = list[NodeLinks](), list[str]()
    if alone:
        (relation,) = {step.relation for step in graph.steps[name]}
        edges, known["edge_weight"] = relation.ends, relation.weight
    else:
        found = [] if at_row_time else _relations(features)
        chosen, left = _most_alike(features, found) if fitted is None else (_again(found, fitted[1]), [])
        edges, member = _union([one.both_ways for one in chosen], table.nodes)
    paths = [] if at_row_time or alone else (before or features).select(longest, most_paths)
    along = path_columns(features, [features.path(key_of(one)) for one in paths])
    notes: list[Repair] = []
    labels = {} if label is None else _labels(table, label, task, notes)
    joined = joined_columns(
        graph,
        name,
        row_times=table.time if at_row_time else None,
        target=_leak_target(label, labels),
        plan=JoinPlan(()) if alone else None if fitted is None else _join_plan(fitted[1]),
    )
    own, plan = _own_features(features, along, edges, known, None if fitted is None else fitted[1])
    built = build_graph(own, edges, nodes=table.nodes, source=f"{graph.source}: {name}", **known)
    repairs = [*graph.repairs, *joined.repairs]
    if left:
        by = shortened(dict.fromkeys(left), 3)
        message = (
            f"{counted(len(left), 'kind')} of links among rows of {name} are not used, since other linked "
        )
        message += f"rows are more alike: {by}"
        repairs.append(Repair("relations-left-out", message, len(left)))
    repairs += notes
    if fitted is None:
        repairs += _without_row(graph, name, labels)
    if label is not None and table.masks is not None:
        labels |= dict(zip(MASKS, table.masks, strict=True))
    links = None if fitted is None else fitted[1].link_columns
    scales = None if links is None else links.plan
    view = replace(
        built.with_repairs(*repairs),
        plan=plan,
        relations=torch.from_numpy(member) if chosen else None,
        relation_names=tuple(one.title for one in chosen),
        path_columns=along,
        link_columns=joined.as_link_columns(scales) if joined.plan.columns else None,
        **labels,
    )
    return with_hash(view)


def _own_features(
    features: PathFeatures,
    along: PathColumns | None,
    edges: Integers,
    known: dict[str, Any],
    fitted: Graph | None,
) -> tuple[Any, TablePlan | None]:
    """Return features of the nodes, and their plan: own columns, else what paths say and structural ones.

    Names of features are added to the known parts of the graph.
    """
    table = features.graph.type(features.name)
    if table.features.shape[1]:
        if table.feature_names:
            known["feature_names"] = table.feature_names
        return table.features, table.plan
    if along is not None and along.values.shape[1]:
        pairs = zip(along.titles, along.widths, strict=True)
        names = [f"{one} {at + 1}" for one, width in pairs for at in range(width)]
        found = along.values
        if edges.shape[1] and (features.fitted or features).graph.type(features.name).nodes > WIDE:
            found = np.concatenate([found, _structure(features, edges, fitted)], axis=1)
            names += [f"structure {at + 1}" for at in range(found.shape[1] - len(names))]
        known["feature_names"] = tuple(names)
        return found, None
    if edges.shape[1]:
        return None, None
    known["feature_names"] = ("constant",)
    return np.ones((table.nodes, 1), dtype=np.float32), None


def _structure(features: PathFeatures, edges: Integers, fitted: Graph | None) -> npt.NDArray[np.float32]:
    """Return structural columns, rows of mean squared length 1; new nodes have the mean of fitted ones."""
    nodes = features.graph.type(features.name).nodes
    if fitted is None:
        found = structural_features(torch.from_numpy(edges), nodes).numpy()
        found = found - found.mean(axis=0)
        return np.asarray(found / max(float(np.sqrt((found**2).sum(axis=1).mean())), 1e-12), np.float32)
    assert fitted.path_columns is not None
    rows = fitted.dense_features().numpy()[:, sum(fitted.path_columns.widths) :]
    found, known = np.zeros((nodes, rows.shape[1]), np.float32), np.zeros(nodes, np.float32)
    at = features.known(features.name)
    found[at], known[at] = rows, 1
    links: Any = sp.csr_array((np.ones(edges.shape[1], np.float32), edges[::-1]), shape=(nodes, nodes))
    mean = (links @ found) / np.maximum(links @ known, 1)[:, None]
    return np.where(known[:, None] > 0, found, mean).astype(np.float32)


def _is_alone(features: PathFeatures) -> bool:
    """Whether the only links of a type are an undirected relation: the view is a graph of one type."""
    relations = {step.relation for step in features.graph.steps[features.name]}
    return len(relations) == 1 and all(one.is_undirected for one in relations)


def _again(found: Sequence[NodeLinks], fitted: Graph) -> list[NodeLinks]:
    """Return the relations of the fitted graph, those without links empty."""
    by_title, none = {one.title: one for one in found}, np.zeros((2, 0), dtype=np.int64)
    return [by_title.get(one, NodeLinks(one, none)) for one in fitted.relation_names]


def _join_plan(fitted: Graph) -> JoinPlan:
    links = fitted.link_columns
    return JoinPlan(() if links is None else links.plan.joined)


def _leak_target(label: str | None, labels: dict[str, Any]) -> Target | None:
    """Return what is predicted, for the search for joined columns that determine it."""
    if "targets" in labels:
        return Target.of_numbers(label, labels["targets"].numpy().astype(np.float64))
    return Target(label, labels["labels"].numpy()) if labels else None


def _labels(table: NodeTable, label: str, task: str, repairs: list[Repair]) -> dict[str, Any]:
    """Return the labels of a type's nodes as parts of a graph; add what is remarkable to the repairs."""
    cells = Cells(table.labels[label])
    found = read_labels(cells.words().tolist(), label, task=task)
    repairs += found.repairs
    if found.targets is not None:
        return {"targets": torch.from_numpy(found.targets), "target_name": label}
    assert found.classes is not None
    return {"labels": torch.from_numpy(found.classes), "class_names": found.class_names}


def _without_row(graph: RelationalGraph, name: str, labels: dict[str, Any]) -> list[Repair]:
    """Report rows that a type, all of whose rows are labelled, refers to one by one, and that it lacks."""
    known = labels["labels"] >= 0 if "labels" in labels else None
    known = ~torch.isnan(labels["targets"]) if "targets" in labels else known
    describes = graph.type(name).features.shape[1] > 0  # a table of its own, not labels of another
    for one in () if describes or known is None or not bool(known.all()) else graph.relations:
        nodes = graph.type(one.target).nodes
        more = nodes - one.ends.shape[1]
        if one.source == name and more > 0 and np.bincount(one.ends[1]).max(initial=0) == 1:
            message = (
                f"every row of {name} has a label, so that only these are predicted: {more:,} of {nodes:,} "
                f"rows or values of {one.target} have none there. To predict them, too, add rows without a "
                f"label that refer to them ({one.name}), before the fit or with --new-tables"
            )
            return [Repair("other-rows-unlabelled", message, more, (one.target,))]
    return []


def uses_row_times(features: PathFeatures, label_time: str | None) -> bool:
    """Return whether labels are of the time of their row, so that later rows do not count.

    Without `label_time` they are where the rows of the type have times and none is linked to a later row.

    Raises:
        GraphError: without `label_time`, if some rows are linked to later ones.
    """
    if label_time is not None:
        check_choice("label_time", label_time, LABEL_TIMES)
        return label_time == "row"
    graph, name = features.graph, features.name
    time = graph.type(name).time
    if time is None or (time == UNKNOWN_TIME).all():
        return False
    for path in features.paths(2):
        steps = [step for hop in path for step in hop.steps]
        if all(step.forward for step in steps) or graph.type(path[-1].end).time is None:
            continue
        if (later := _later_rows(graph, steps, time)) > 0:
            title = " > ".join(hop.title for hop in path)
            message = (
                f"{later:,} rows of {name} are linked to later rows ({title}): choose --label-time row if "
                "the label is of the time of its row, so that later rows do not count, or --label-time now"
            )
            raise GraphError(message, code="label-time-unclear")
    return True


def _later_rows(graph: RelationalGraph, steps: Sequence[Step], time: Integers) -> int:
    """Return how many rows have a linked row that is later."""
    reached = graph.type(steps[-1].end).time
    assert reached is not None
    for step in reversed(steps):
        first, second = step.relation.ends if step.forward else step.relation.ends[::-1]
        latest = np.full(graph.type(step.start).nodes, UNKNOWN_TIME)
        np.maximum.at(latest, first, reached[second])
        reached = latest
    return int(((reached > time) & (time != UNKNOWN_TIME)).sum())


def path_columns(features: PathFeatures, paths: Sequence[Path]) -> PathColumns | None:
    """Return the means along paths, in principal components; None without paths."""
    parts = [features.components(path) for path in paths]
    if not parts:
        return None
    titles = tuple(" > ".join(hop.title for hop in path) for path in paths)
    alone = not features.graph.type(features.name).features.shape[1]
    return PathColumns(np.concatenate(parts, axis=1), titles, tuple(one.shape[1] for one in parts), alone)


def _relations(features: PathFeatures) -> list[NodeLinks]:
    """Return the links among the nodes: direct ones, and by a node that both reach in up to two hops."""
    name, found = features.name, list[NodeLinks]()
    for path in features.paths(2):
        title, end = " > ".join(hop.title for hop in path), path[-1].end
        if end in features.graph.link_types:
            continue
        matrix = features.matrix(path[0])
        if end == name:
            if len(path) == 1 and path[0].steps[-1].forward:  # the reverse is the same link
                pairs = matrix.tocoo()
                found.append(NodeLinks(title, np.stack([pairs.col, pairs.row]).astype(np.int64)))
            continue
        if len(path) > 1:
            matrix = sp.csr_array(matrix @ features.matrix(path[1]))
        found.append(NodeLinks(f"same {title}", _sharing(matrix)))
    return [one for one in found if one.ends.shape[1]]


def _sharing(matrix: sp.csr_array) -> Integers:
    """Link nodes that share a column: all of a small group, else neighbours on a ring in a fixed order.

    Of a node with many columns the rarest count, so that the links grow with the number of nodes.
    """
    sizes = np.diff(matrix.tocsc().indptr)
    pairs = matrix.tocoo()
    row, column = pairs.row.astype(np.int64), pairs.col.astype(np.int64)
    kept = sizes[column] > 1
    row, column = row[kept], column[kept]
    order = np.lexsort((column, sizes[column], row))
    row, column = row[order], column[order]
    rank = np.arange(len(row)) - np.searchsorted(row, row)
    most = NEIGHBOURS // 2
    row, column, rank = row[rank < most], column[rank < most], rank[rank < most]
    groups = np.bincount(row, minlength=matrix.shape[0])
    share = np.maximum(1, most // np.maximum(groups, 1))  # steps on the ring of each group
    mixed = (row * 0x9E3779B1 + column * 0x85EBCA6B) % 0xFFFFFFFB
    order = np.lexsort((mixed, column))
    row, column = row[order], column[order]
    first = np.searchsorted(column, column)
    size = np.searchsorted(column, column, side="right") - first
    at = np.arange(len(row)) - first
    sources, targets = list[Integers](), list[Integers]()
    for step in range(1, most + 1):
        used = (step <= share[row]) & (step <= size // 2)
        sources.append(row[used])
        targets.append(row[(first + (at + step) % np.maximum(size, 1))[used]])
    ends = np.stack([np.concatenate(sources), np.concatenate(targets)])
    return ends[:, ends[0] != ends[1]]


def _most_alike(features: PathFeatures, found: Sequence[NodeLinks]) -> tuple[list[NodeLinks], list[str]]:
    """Return the relations whose ends are most alike, and the titles of the others, which paths describe."""
    rows, chosen = features.features(features.name), [*range(len(found))][:MOST_RELATIONS]
    if found and rows.shape[1] > 1 and features.graph.type(features.name).features.shape[1]:
        alike = np.array([similarity(rows, one.ends) for one in found])
        best, *others = np.argsort(-alike, kind="stable").tolist()
        good = [best, *(at for at in others if alike[at] >= LEAST_ALIKE * abs(alike[best]))]
        chosen = sorted(good[:MOST_RELATIONS])
    return [found[at] for at in chosen], [one.title for at, one in enumerate(found) if at not in chosen]


def similarity(rows: npt.NDArray[np.float32], ends: Integers) -> float:
    """Return the mean cosine similarity of the centred rows at both ends of links."""
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    unit = rows / np.where(length > 0, length, 1)
    unit = unit - unit.mean(axis=0)
    some = np.linspace(0, ends.shape[1] - 1, min(PAIRS, ends.shape[1])).astype(np.int64)
    product = (unit[ends[0, some]] * unit[ends[1, some]]).sum(axis=1).mean()
    return float(product / max(float((unit**2).sum(axis=1).mean()), 1e-12))


def _union(relations: Sequence[Integers], nodes: int) -> tuple[Integers, npt.NDArray[np.bool_]]:
    """Return the distinct links, sorted by target, and which relations each belongs to."""
    keys = [ends[1] * nodes + ends[0] for ends in relations]
    every = np.unique(np.concatenate(keys)) if keys else np.empty(0, dtype=np.int64)
    member = np.stack([np.isin(every, one) for one in keys]) if keys else np.empty((0, 0), dtype=bool)
    return np.stack([every % max(nodes, 1), every // max(nodes, 1)]), member
