"""Inputs of the estimator: from what the user gives to a graph, and from a graph to what an encoder reads."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data
from torch import Tensor

from h3gnn.encoder import EncoderStack, FeatureMatrix, Support
from h3gnn.encoder.encode import GraphRows, gather_rows
from h3gnn.encoder.readout import ColumnScaler, Smoother, StepMatrix, suggest_smoothing
from h3gnn.encoder.support import support_from_rows
from h3gnn.errors import GraphError, InputError
from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.convert import as_graph, nearest_neighbour_graph
from h3gnn.graphs.graph import Graph, GraphLike, with_columns
from h3gnn.graphs.guards import check_dates, check_table, is_graph
from h3gnn.graphs.ids import check_ids
from h3gnn.graphs.provenance import Repair, warn_about_repairs
from h3gnn.graphs.scaling import FeatureScaler
from h3gnn.tables.frames import (
    as_frame,
    column_names,
    counted,
    encode_frame,
    is_frame,
    is_mixed,
    node_names,
)
from h3gnn.tables.plan import TablePlan
from h3gnn.training.batches import SampledBatches, WholeGraph, compared_nodes, sampled_batches
from h3gnn.training.distributed import Ranks, shard_rows
from h3gnn.training.models import FromSettings, Shape
from h3gnn.training.objectives import OBJECTIVES, assign_objectives

NO_EDGES: npt.NDArray[np.int64] = np.empty((2, 0), dtype=np.int64)


def read_input(estimator: Any, X: Any, edge_index: Any) -> Graph:  # noqa: N803
    """Return the graph to fit; a table alone becomes a nearest-neighbour graph."""
    if edge_index is not None or is_graph(X):
        return as_graph(X, edge_index)
    plan: TablePlan | None = None
    repairs: tuple[Repair, ...] = ()
    X = as_frame(X)  # noqa: N806
    if is_mixed(X):
        check_table(X)
        X, plan, repairs = encode_frame(X)  # noqa: N806
    table, named = _read_table(estimator, X)
    alone = replace(check_graph(table, NO_EDGES), plan=plan)
    scaled = alone.fit_scaler(estimator.scale_features)(alone.features)
    graph = nearest_neighbour_graph(table, scaled, estimator.n_neighbors, **named)
    warn_about_repairs(repairs)
    return replace(graph.with_repairs(*repairs), plan=plan)


def read_rows(estimator: Any, table: Any, fitted: Graph) -> Graph:
    """Return the rows of a table without edges, with columns in the fitted order."""
    table = as_frame(table)
    if is_frame(table) and fitted.plan is not None and not fitted.plan.as_is:
        table = encode_frame(table, plan=fitted.plan)[0]
    numbers, named = _read_table(estimator, table, fitted)
    return check_graph(numbers, NO_EDGES, node_ids=named["node_ids"])


def set_feature_names(estimator: Any, graph: GraphLike) -> None:
    """Set `n_features_in_` and, if the graph has names, `feature_names_in_`, as scikit-learn does."""
    estimator.n_features_in_ = graph.num_features
    vars(estimator).pop("feature_names_in_", None)
    if graph.feature_names:
        estimator.feature_names_in_ = np.array(graph.feature_names, dtype=object)


def _read_table(
    estimator: BaseEstimator, table: Any, fitted: Graph | None = None
) -> tuple[Any, dict[str, Any]]:
    """Return the numbers of a table, validated by scikit-learn, and the names of its rows and columns.

    Args:
        estimator: learns the columns if there is no `fitted` graph.
        table: one row per node.
        fitted: the graph whose columns these must be, in any order.
    """
    table = as_frame(table)
    check_dates(table)
    names = column_names(table)
    if names:
        table = table.set_axis(list(names), axis="columns")  # scikit-learn needs names of type str
    if fitted is None:
        check_table(table)
    elif names and (fitted.feature_names or {*names} == {*counted(fitted.num_features)}):
        order = column_order(fitted.feature_names or counted(fitted.num_features), names)
        table = table if order is None else table.iloc[:, order]
        table = table if fitted.feature_names else table.set_axis(range(len(names)), axis="columns")
    numbers = validate_data(estimator, table, accept_sparse="csr", dtype=np.float32, reset=fitted is None)
    unique = is_frame(table) and table.index.is_unique and not table.index.hasnans
    return numbers, {"feature_names": names, "node_ids": node_names(table) if unique else None}


def column_order(fitted: tuple[str, ...], given: tuple[str, ...]) -> list[int] | None:
    """Return the position of each fitted column among the given ones; None if the order is the same.

    Raises:
        GraphError: if the names differ.
    """
    if given == fitted:
        return None
    place = {name: position for position, name in enumerate(given)}
    missing = [name for name in fitted if name not in place]
    known = set(fitted)
    unknown = [name for name in given if name not in known]
    if missing or unknown:
        problems = [f"{_listed(missing)} missing"] if missing else []
        problems += [f"{_listed(unknown)} unknown"] if unknown else []
        raise GraphError(
            f"the feature columns differ from the fit: {' and '.join(problems)}; give the fitted columns "
            f"({', '.join(fitted[:8])}{', …' if len(fitted) > 8 else ''}), in any order, and no others",
            code="feature-columns-differ",
        )
    return [place[name] for name in fitted]


def _listed(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:5]) + (f" and {len(names) - 5} more" * (len(names) > 5))
    return f"{shown} {'is' if len(names) == 1 else 'are'}"


def align_columns(fitted: GraphLike, graph: Graph) -> Graph:
    """Return a new graph with its feature columns in the fitted order."""
    order = fitted_order(fitted, graph)
    return graph if order is None else with_columns(graph, order, fitted.feature_names)


def fitted_order(fitted: GraphLike, graph: GraphLike) -> list[int] | None:
    """Return the position of each fitted column in a new graph; None if the order is the same.

    Columns without names are matched by position, with a warning if the other graph has names.
    """
    if graph.feature_names or fitted.feature_names:
        positions = counted(fitted.num_features), counted(graph.num_features)
        names = fitted.feature_names or positions[0], graph.feature_names or positions[1]
        if graph.feature_names and (fitted.feature_names or set(names[0]) == set(names[1])):
            return column_order(*names)
        has, had = ("has", "without") if graph.feature_names else ("does not have valid", "with")
        warnings.warn(f"X {has} feature names, but H3GNN was fitted {had} feature names", stacklevel=4)
    if graph.num_features != fitted.num_features:
        raise GraphError(
            f"X has {graph.num_features} features, but H3GNN is expecting {fitted.num_features} features "
            "as input",
            code="feature-count-differs",
        )
    return None


def check_same_rows(fitted: Graph, rows: Graph) -> None:
    """Reject rows without edges that are not those of the fitted graph."""
    if not _same_rows(fitted, rows):
        raise InputError(
            "X has no edges, and its rows are not those of the fitted graph: give the edges with "
            "transform(X, edge_index=E). In a Pipeline, after "
            "sklearn.set_config(enable_metadata_routing=True), use "
            "H3GNN().set_fit_request(edge_index=True).set_transform_request(edge_index=True) and "
            "pipeline.predict(X, edge_index=E)",
            code="rows-without-edges",
        )


def _same_rows(fitted: Graph, rows: Graph) -> bool:
    """Return whether rows without edges are all rows of the fitted graph, in the same order."""
    if rows.has_ids and not (fitted.has_ids and np.array_equal(rows.node_ids, fitted.node_ids)):
        return False
    ours, theirs = fitted.features, rows.features
    if ours.shape != theirs.shape:
        return False
    if ours.layout == theirs.layout == torch.sparse_csr:
        return all(torch.equal(a, b) for a, b in zip(_parts(ours), _parts(theirs), strict=True))
    return torch.equal(ours.to_dense(), theirs.to_dense())


def _parts(features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return features.crow_indices(), features.col_indices(), features.values()


def as_output(
    estimator: BaseEstimator, embedding: npt.NDArray[np.float32], graph: GraphLike, given: Any
) -> Any:
    """Return an embedding, as a DataFrame indexed by node ids if pandas output is configured.

    scikit-learn itself keeps the index of a DataFrame that was `given`.
    """
    if is_frame(given) or not graph.in_memory or not graph.has_ids or not _pandas_output(estimator):
        return embedding
    import pandas as pd

    check_ids(graph.node_ids)
    return pd.DataFrame(embedding, index=pd.Index(graph.node_ids), columns=estimator.get_feature_names_out())


def _pandas_output(estimator: BaseEstimator) -> bool:
    """Return whether `set_output` or the global configuration asks for pandas."""
    from sklearn import get_config

    own = getattr(estimator, "_sklearn_output_config", {}).get("transform")  # absent before `set_output`
    return bool((own or get_config()["transform_output"]) == "pandas")


@dataclass(frozen=True)
class Preprocessing(FromSettings):
    """Settings that determine how an encoder reads a graph."""

    undirected: bool
    self_loops: bool
    edge_init: float | str
    edge_weights: str
    normalize: bool
    scale_features: str

    def support(self, graph: GraphLike) -> Support:
        """Return the entries of Ã along which messages flow."""
        rows = graph.adjacency(undirected=self.undirected, self_loops=self.self_loops)
        bounded = self.edge_weights != "free"
        return support_from_rows(*rows, start=self.edge_init, normalize=self.normalize, bounded=bounded)

    def fit(self, graph: GraphLike) -> PreparedGraph:
        """Learn the scaling of a graph's features and build its support."""
        return PreparedGraph(graph, graph.fit_scaler(self.scale_features), self.support(graph))


@dataclass(frozen=True, eq=False)
class PreparedGraph:
    """A graph as an encoder reads it: features scaled, edges as a support."""

    graph: GraphLike
    scaler: FeatureScaler
    support: Support

    def rows(self, order: list[int] | None = None) -> GraphRows:
        """Return the graph with features read on demand, in another order of columns if given."""
        read = self.graph.feature_reader(self.scaler, order, gather_rows)
        return GraphRows(read, self.support, self.graph.num_features)

    def features(self, storage: str, device: torch.device) -> FeatureMatrix:
        """Return all scaled features of a graph in memory on a device."""
        return FeatureMatrix(self.scaler(self.graph.features).to(device), storage=storage)

    def source(
        self, settings: Mapping[str, Any], device: torch.device, ranks: Ranks | None = None
    ) -> WholeGraph | SampledBatches:
        """Return the graph for training: as one batch, or in mini-batches shared by several processes."""
        hops = settings["hops"]
        if settings["batch_size"] is None:
            features = self.features(settings["feature_storage"], device)
            compared = compared_nodes(settings["nodes_per_step"], self.graph.num_nodes)
            return WholeGraph(features, self.support.to(device), hops, compared)
        members = assign_objectives(settings["objective"], settings["n_models"])
        return sampled_batches(
            shard_rows(self.rows(), ranks or Ranks(), in_memory=self.graph.in_memory),
            hops,
            device,
            batch_size=settings["batch_size"],
            num_neighbors=settings["num_neighbors"],
            batches=settings["batches"],
            paired=any(OBJECTIVES[name].needs_pairs for name in members),
        )


def step_matrix(graph: GraphLike, kind: str, device: torch.device | None = None) -> StepMatrix:
    """Return the matrix of one step along the edges, by which embeddings are smoothed.

    Args:
        graph: in memory or on disk.
        kind: of `StepMatrix`.
        device: of the embeddings; rows of a graph on disk are read as they are needed.
    """
    rows = graph.adjacency(undirected=True, self_loops=True)
    support = support_from_rows(*rows, start="normalized", normalize=False)
    return StepMatrix(support, kind, device if graph.in_memory else None)


def build_smoother(graph: GraphLike, kind: str, strength: float, device: torch.device | None) -> Smoother:
    """Return the smoothing of embeddings of a graph; a strength of 0 changes nothing."""
    return Smoother(step_matrix(graph, kind, device) if strength else None, strength)


def choose_smoothing(settings: dict[str, Any], prepared: PreparedGraph) -> float:
    """Return the strength of smoothing: as set, or chosen from the features."""
    given = settings["smoothing"]
    return suggest_smoothing(prepared.rows()) if isinstance(given, str) else float(given)


def stack_builder(
    settings: dict[str, Any], prepared: PreparedGraph, device: torch.device, *, saved: bool = False
) -> Callable[[int], EncoderStack]:
    """Return a function from a number of models to a stack of them, not yet initialized.

    In mini-batches the edge weights are not in the stack until training ends; those of a saved model are.
    """
    entries = prepared.support.entries if saved or settings["batch_size"] is None else 0
    shape, columns = Shape.of(settings), prepared.graph.num_features
    return lambda models: shape.build(columns, entries, models, device)


def snapshot_read_out(
    graph: GraphLike, settings: dict[str, Any], smoothing: float, device: torch.device
) -> Callable[[Tensor], Tensor]:
    """Return the read-out of snapshots, the same as that of a fitted embedding."""
    smoother = build_smoother(graph, settings["smoother"], smoothing, device)
    mixed = len(set(assign_objectives(settings["objective"], settings["n_models"]))) > 1
    return lambda rows: smoother(ColumnScaler.fit(rows)(rows) if mixed else rows)
