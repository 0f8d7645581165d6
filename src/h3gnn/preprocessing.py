"""What the estimator is handed: graphs, tables whose columns are known by name, rows that need no edges."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data
from torch import Tensor

from h3gnn.encoder import Support, build_support
from h3gnn.encoder.encode import GraphRows, gather_rows
from h3gnn.encoder.readout import StepMatrix, step_support
from h3gnn.encoder.support import support_of_rows
from h3gnn.errors import GraphError, InputError
from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.convert import as_graph, nearest_neighbour_graph
from h3gnn.graphs.graph import Graph, with_columns
from h3gnn.graphs.guards import check_dates, check_table, is_graph
from h3gnn.graphs.ids import check_ids
from h3gnn.graphs.provenance import Repair, warn_about_repairs
from h3gnn.graphs.scaling import FeatureScaler, scaler_of
from h3gnn.ondisk.mapped import MappedGraph, feature_rows, support_rows
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
from h3gnn.training.batches import rows_in_memory
from h3gnn.training.models import FromSettings

NO_EDGE: npt.NDArray[np.int64] = np.empty((2, 0), dtype=np.int64)
NO_EDGES = (
    "X alone has no edges, and its rows are not those of the graph that H3GNN was fitted on: give the edges "
    "with transform(X, edge_index=E), or, in a Pipeline, after "
    "sklearn.set_config(enable_metadata_routing=True), use "
    "H3GNN().set_fit_request(edge_index=True).set_transform_request(edge_index=True), and then "
    "pipeline.predict(X, edge_index=E)"
)


def read_input(estimator: Any, X: Any, edge_index: Any) -> Graph:  # noqa: N803
    """Return the graph that a fit is handed; a table alone gets the edges of its nearest rows."""
    if edge_index is not None or is_graph(X):
        return as_graph(X, edge_index)
    plan: TablePlan | None = None
    repairs: tuple[Repair, ...] = ()
    X = as_frame(X)  # noqa: N806
    if is_mixed(X):
        check_table(X)
        X, plan, repairs = encode_frame(X)  # noqa: N806
    table, named = _read_table(estimator, X)
    alone = replace(check_graph(table, NO_EDGE), plan=plan)
    scaled = scaler_of(alone, estimator.scale_features)(alone.features)
    graph = nearest_neighbour_graph(table, scaled, estimator.n_neighbors, **named)
    warn_about_repairs(repairs)
    return replace(graph.with_repairs(*repairs), plan=plan)


def read_rows(estimator: Any, table: Any, fitted: Graph) -> Graph:
    """Return the rows of a table without edges, their columns in the order of the fitted graph's."""
    table = as_frame(table)
    if is_frame(table) and fitted.plan is not None and not fitted.plan.as_is:
        table = encode_frame(table, plan=fitted.plan)[0]
    numbers, named = _read_table(estimator, table, fitted)
    return check_graph(numbers, NO_EDGE, node_ids=named["node_ids"])


def take_columns(estimator: Any, graph: Graph | MappedGraph) -> None:
    """Let an estimator know its columns as scikit-learn does: their number, and their names, if any."""
    estimator.n_features_in_ = graph.num_features
    vars(estimator).pop("feature_names_in_", None)
    if graph.feature_names:
        estimator.feature_names_in_ = np.array(graph.feature_names, dtype=object)


def _read_table(
    estimator: BaseEstimator, table: Any, fitted: Graph | None = None
) -> tuple[Any, dict[str, Any]]:
    """Return the numbers of a table as scikit-learn checks them, and the names of its rows and columns.

    Args:
        estimator: to which the columns are known, or made known where there is no `fitted` graph.
        table: one row per node.
        fitted: the graph whose columns these must be, in any order.
    """
    table = as_frame(table)
    check_dates(table)
    names = column_names(table)
    if names:
        table = table.set_axis(list(names), axis="columns")  # scikit-learn knows names that are texts
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
    """Return where each fitted column stands among the given ones; None where all stand in their places.

    Raises:
        GraphError: where names on both sides are not the same.
    """
    if given == fitted:
        return None
    place = {name: position for position, name in enumerate(given)}
    missing = [name for name in fitted if name not in place]
    known = set(fitted)
    unknown = [name for name in given if name not in known]
    if missing or unknown:
        said = [f"{_listed(missing)} missing"] if missing else []
        said += [f"{_listed(unknown)} not known"] if unknown else []
        raise GraphError(
            f"the feature columns are not those of the fit: {', and '.join(said)}; give the fitted columns "
            f"({', '.join(fitted[:8])}{', …' if len(fitted) > 8 else ''}), in any order, and no others"
        )
    return [place[name] for name in fitted]


def _listed(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:5]) + (f" and {len(names) - 5} more" * (len(names) > 5))
    return f"{shown} {'is' if len(names) == 1 else 'are'}"


def by_name(fitted: Graph | MappedGraph, graph: Graph) -> Graph:
    """Return a new graph with its feature columns in the order of the fitted one's."""
    order = order_of(fitted, graph)
    return graph if order is None else with_columns(graph, order, fitted.feature_names)


def order_of(fitted: Graph | MappedGraph, graph: Graph | MappedGraph) -> list[int] | None:
    """Return where each fitted column stands in a new graph; None where all stand in their places.

    Columns without names are known by their places, which is said aloud where the other side has names.
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
            "as input"
        )
    return None


def check_own_rows(fitted: Graph, rows: Graph) -> None:
    """Refuse rows without edges that are not those of the fitted graph, and say how to give the edges."""
    if not _are_rows_of(fitted, rows):
        raise InputError(NO_EDGES)


def _are_rows_of(fitted: Graph, rows: Graph) -> bool:
    """Tell whether rows without edges are those of the fitted graph: all of them, in their order."""
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


def named_rows(
    estimator: BaseEstimator, embedding: npt.NDArray[np.float32], graph: Graph | MappedGraph, given: Any
) -> Any:
    """Return an embedding as it is; where pandas output is set, as a DataFrame under the names of nodes.

    Of a DataFrame that was `given`, scikit-learn itself keeps the index.
    """
    from sklearn.utils._set_output import _get_output_config

    if is_frame(given) or not isinstance(graph, Graph) or not graph.has_ids:
        return embedding
    if _get_output_config("transform", estimator)["dense"] != "pandas":
        return embedding
    import pandas as pd

    check_ids(graph.node_ids)
    return pd.DataFrame(embedding, index=pd.Index(graph.node_ids), columns=estimator.get_feature_names_out())


@dataclass(frozen=True)
class Intake(FromSettings):
    """How a graph is taken in."""

    undirected: bool
    self_loops: bool
    edge_start: float | str
    edge_weights: str
    normalize: bool
    scale_features: str

    def scaler(self, graph: Graph | MappedGraph) -> FeatureScaler:
        """Learn the scale of a graph's features."""
        if isinstance(graph, MappedGraph):
            return graph.scaler(self.scale_features)
        return scaler_of(graph, self.scale_features)

    def support(self, graph: Graph | MappedGraph) -> Support:
        """Return where messages may flow in a graph."""
        start, bounded = self.edge_start, self.edge_weights != "free"
        if isinstance(graph, MappedGraph):
            found = support_rows(graph, undirected=self.undirected, self_loops=self.self_loops)
            rows = found.crow, found.cols, found.weight
            return support_of_rows(*rows, start=start, normalize=self.normalize, bounded=bounded)
        return build_support(
            graph.edge_index,
            graph.num_nodes,
            edge_weight=graph.edge_weight,
            undirected=self.undirected,
            self_loops=self.self_loops,
            start=start,
            normalize=self.normalize,
            bounded=bounded,
        )

    def rows(self, graph: Graph | MappedGraph) -> GraphRows:
        """Return a graph as a fit takes it in."""
        return rows_of(graph, self.scaler(graph), self.support(graph))


def rows_of(
    graph: Graph | MappedGraph, scaler: FeatureScaler, support: Support, order: list[int] | None = None
) -> GraphRows:
    """Return a graph as rows that are read on demand, with a scale and a support that are there already.

    The columns of a graph in files may be read in another order.
    """
    if isinstance(graph, MappedGraph):
        return GraphRows(feature_rows(graph, scaler, order, gather_rows), support, graph.num_features)
    return rows_in_memory(scaler(graph.features), support)


def steps_of(graph: Graph | MappedGraph, kind: str, device: torch.device | None = None) -> StepMatrix:
    """Return one step along the edges of a graph, which a read-out smooths by.

    Args:
        graph: in memory or in files.
        kind: of `StepMatrix`.
        device: where embeddings lie; a graph in files has none, and its rows are read as they are needed.
    """
    if isinstance(graph, MappedGraph):
        rows = support_rows(graph, undirected=True, self_loops=True)
        support = support_of_rows(rows.crow, rows.cols, rows.weight, start="normalized", normalize=False)
        return StepMatrix(support, kind)
    return StepMatrix(step_support(graph.edge_index, graph.num_nodes, graph.edge_weight), kind, device)
