"""Preprocessing of the estimator: user input becomes a graph, and a graph the input of an encoder."""

from __future__ import annotations

import numbers
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data
from torch import Tensor

from h3gnn.encoder import EncoderStack, FeatureMatrix, Support
from h3gnn.encoder.blocks import COLUMNS, COMPONENTS, DIFFUSION, InputBlocks
from h3gnn.encoder.encode import GraphRows, Sharing, gather_rows
from h3gnn.encoder.readout import ColumnScaler, Smoother, StepMatrix, suggest_smoothing
from h3gnn.encoder.support import find_entries, support_from_rows
from h3gnn.errors import GraphError, InputError, shortened
from h3gnn.graphs.checks import as_frame, check_graph, counted, is_frame, is_table
from h3gnn.graphs.convert import as_graph, check_dates, check_table, is_graph, nearest_neighbour_graph
from h3gnn.graphs.graph import FIXED_ORDER, Graph, GraphLike, canonical_order, reorder_nodes, with_columns
from h3gnn.graphs.ids import check_ids
from h3gnn.graphs.provenance import warn_about_repairs
from h3gnn.graphs.scaling import FeatureScaler
from h3gnn.tables.features import FeatureFile, FeatureOptions, read_features
from h3gnn.training.batches import SampledBatches, WholeGraph, compared_nodes
from h3gnn.training.distributed import Ranks, is_distributed, shard_rows
from h3gnn.training.history import History
from h3gnn.training.models import FromSettings, PathCounts, Shape
from h3gnn.training.objectives import OBJECTIVES, assign_objectives
from h3gnn.training.resources import use_bfloat16

CPU = torch.device("cpu")
NO_EDGES: npt.NDArray[np.int64] = np.empty((2, 0), dtype=np.int64)


def read_input(estimator: Any, X: Any, edge_index: Any) -> Graph:  # noqa: N803
    """Return the graph to fit; a table alone becomes a nearest-neighbour graph."""
    if edge_index is not None or is_graph(X):
        return as_graph(X, edge_index)
    values, nodes = _read_table(estimator, X)
    rows = replace(check_graph(values, NO_EDGES), plan=nodes.plan)
    scaled = rows.fit_scaler(estimator.scale_features)(rows.features)
    names = {"feature_names": nodes.names, "node_ids": nodes.ids if nodes.named else None}
    graph = nearest_neighbour_graph(values, scaled, estimator.n_neighbors, **names)
    warn_about_repairs(nodes.repairs)
    return replace(graph.with_repairs(*nodes.repairs), plan=nodes.plan)


def read_rows(estimator: Any, table: Any, fitted: Graph) -> Graph:
    """Return the rows of a table without edges, with columns in the fitted order."""
    values, nodes = _read_table(estimator, table, fitted)
    return check_graph(values, NO_EDGES, node_ids=nodes.ids if nodes.named else None)


def set_feature_names(estimator: Any, graph: GraphLike) -> None:
    """Set `n_features_in_` and, if the graph has names, `feature_names_in_`, as scikit-learn does."""
    estimator.n_features_in_ = graph.num_features
    vars(estimator).pop("feature_names_in_", None)
    if graph.feature_names:
        estimator.feature_names_in_ = np.array(graph.feature_names, dtype=object)


def _read_table(estimator: BaseEstimator, table: Any, fitted: Graph | None = None) -> tuple[Any, FeatureFile]:
    """Return a table's values, validated by scikit-learn, with the columns of `fitted`, and its names."""
    table, plan = as_frame(table), None if fitted is None else fitted.plan
    if fitted is None:
        check_table(table)
    if not is_table(table) or (fitted is not None and (plan is None or plan.as_is)):
        check_dates(table)
    if is_table(table):
        unique = table.index.is_unique and not table.index.hasnans  # not so in a bootstrap sample
        nodes = read_features([table if unique else table.reset_index(drop=True)], FeatureOptions(plan=plan))
        table = pd.DataFrame(nodes.values, columns=list(nodes.names) or None)
        names, known = nodes.names, () if fitted is None else fitted.feature_names
        usual = () if fitted is None else counted(fitted.num_features)
        if fitted is not None and names and (known or {*names} == {*usual}):
            order = column_order(known or usual, names)
            table = table if order is None else table.iloc[:, order]
            table = table if known else table.set_axis(range(len(names)), axis="columns")
    values = validate_data(estimator, table, accept_sparse="csr", dtype=np.float32, reset=fitted is None)
    return values, nodes if is_table(table) else FeatureFile(values, np.arange(values.shape[0]), False)


def column_order(fitted: tuple[str, ...], given: tuple[str, ...]) -> list[int] | None:
    """Return the position of each fitted column among the given ones; None if the order is the same."""
    if given == fitted:
        return None
    position = {name: at for at, name in enumerate(given)}
    known = set(fitted)
    missing = [name for name in fitted if name not in position]
    unknown = [name for name in given if name not in known]
    if missing or unknown:
        sides = (("missing", missing), ("unknown", unknown))
        problems = [
            f"{shortened(map(repr, names), 5)} {'is' if len(names) == 1 else 'are'} {what}"
            for what, names in sides
            if names
        ]
        raise GraphError(
            f"the feature columns differ from the fit: {' and '.join(problems)}; give the fitted columns "
            f"({shortened(fitted)}), in any order, and no others",
            code="feature-columns-differ",
        )
    return [position[name] for name in fitted]


def align_columns(fitted: GraphLike, graph: Graph) -> Graph:
    """Return a new graph with its feature columns in the fitted order."""
    order = fitted_order(fitted, graph)
    return graph if order is None else with_columns(graph, order, fitted.feature_names)


def fitted_order(fitted: GraphLike, graph: GraphLike) -> list[int] | None:
    """Return the position of each fitted column in a new graph; None if the order is the same.

    Columns without names are matched by position, with a warning if the other graph has names.
    """
    if graph.feature_names or fitted.feature_names:
        names = fitted.feature_names or counted(fitted.num_features)
        if graph.feature_names and (fitted.feature_names or set(names) == set(graph.feature_names)):
            return column_order(names, graph.feature_names)
        has, had = ("has", "without") if graph.feature_names else ("does not have valid", "with")
        warnings.warn(f"X {has} feature names, but H3GNN was fitted {had} feature names", stacklevel=4)
    if graph.num_features != fitted.num_features:
        counts = f"X has {graph.num_features} features, but H3GNN is expecting {fitted.num_features} features"
        raise GraphError(f"{counts} as input", code="feature-count-differs")
    return None


def check_training(
    batch_size: int | None, random_state: Any, checkpoints: Any, snapshots: Any, *, on_disk: bool
) -> None:
    """Reject invalid combinations of arguments of a fit before anything is read."""
    if checkpoints is not None:
        checkpoints.check()
        if not isinstance(random_state, numbers.Integral):
            raise InputError("checkpoints need an integer random_state", code="checkpoints-need-seed")
    if batch_size is None and (on_disk or is_distributed()):
        what = "a graph on disk needs" if on_disk else "several processes need"
        message = f"{what} mini-batches: give batch_size (--batch-size 1024)"
        raise InputError(message, code="batch-size-missing")
    if snapshots is not None and batch_size is not None:
        raise InputError("snapshots need the full graph: omit batch_size", code="snapshots-in-batches")
    if snapshots is not None and checkpoints is not None:
        message = "a resumed run has no earlier snapshots: give checkpoints or snapshots, not both"
        raise InputError(message, code="snapshots-with-checkpoints")


def fingerprint(
    settings: Mapping[str, Any], seeds: list[int], graph: GraphLike, device: torch.device
) -> dict[str, Any]:
    """Return everything that must be equal for a checkpoint to be resumed, with the settings of a run."""
    return {
        **settings,
        "precision": "bfloat16" if use_bfloat16(settings["precision"], device) else "float32",  # not "auto"
        "device": device.type,
        "seeds": seeds,
        "graph": graph.provenance.sha256,
    }


def check_same_rows(fitted: Graph, rows: Graph) -> None:
    """Reject rows without edges that are not those of the fitted graph."""
    if not _same_rows(fitted, rows):
        raise InputError(
            "X has no edges, and its rows are not those of the fitted graph: use transform(X, edge_index=E), "
            "or in a Pipeline, after sklearn.set_config(enable_metadata_routing=True), "
            "H3GNN().set_fit_request(edge_index=True).set_transform_request(edge_index=True) and "
            "pipeline.predict(X, edge_index=E)",
            code="rows-without-edges",
        )


def _same_rows(fitted: Graph, rows: Graph) -> bool:
    if rows.has_ids and not (fitted.has_ids and np.array_equal(rows.node_ids, fitted.node_ids)):
        return False
    ours, theirs = fitted.features, rows.features
    if ours.shape != theirs.shape:
        return False
    if ours.layout == theirs.layout == torch.sparse_csr:
        parts = torch.Tensor.crow_indices, torch.Tensor.col_indices, torch.Tensor.values
        return all(torch.equal(part(ours), part(theirs)) for part in parts)
    return torch.equal(ours.to_dense(), theirs.to_dense())


def as_output(
    estimator: BaseEstimator, embedding: npt.NDArray[np.float32], graph: GraphLike, given: Any
) -> Any:
    """Return an embedding, as a DataFrame indexed by node ids if pandas output is configured."""
    # scikit-learn itself keeps the index of a DataFrame
    if is_frame(given) or not graph.in_memory or not graph.has_ids or not _pandas_output(estimator):
        return embedding
    check_ids(graph.node_ids)
    return pd.DataFrame(embedding, index=pd.Index(graph.node_ids), columns=estimator.get_feature_names_out())


def _pandas_output(estimator: BaseEstimator) -> bool:
    """Return whether `set_output` or the global configuration selects pandas."""
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
        support = support_from_rows(*rows, start=self.edge_init, normalize=self.normalize, bounded=bounded)
        if graph.relations is None:
            return support
        return support.with_relations(members_of_entries(support, graph))

    def fit(self, graph: GraphLike) -> PreparedGraph:
        """Learn the scaling of a graph's features and build its support."""
        return PreparedGraph(graph, graph.fit_scaler(self.scale_features), self.support(graph))


def members_of_entries(support: Support, graph: Any) -> Tensor:
    """Return which relations each entry of a support belongs to, those of its edge in either direction."""
    source, target = graph.edge_index
    rows, cols = support.ends(None)
    keys = target * support.nodes + source  # sorted, as the edges are
    members = (rows == cols).expand(len(graph.relations), -1).clone()
    for receiver, sender in ((rows, cols), (cols, rows)):
        wanted = receiver * support.nodes + sender
        at = torch.searchsorted(keys, wanted).clamp_max(max(0, len(keys) - 1))
        members |= graph.relations[:, at] & (keys[at] == wanted)
    return members


@dataclass(frozen=True, eq=False)
class PreparedGraph:
    """A graph as an encoder reads it: features scaled, edges as a support."""

    graph: GraphLike
    scaler: FeatureScaler
    support: Support

    def rows(self, order: list[int] | None = None) -> GraphRows:
        """Return the graph with features read on demand, columns in a given order."""
        read = self.graph.feature_reader(self.scaler, order, gather_rows)
        return GraphRows(read, self.support, self.graph.num_features, paths=self.paths(CPU))

    def on_device(self, storage: str, device: torch.device) -> GraphRows:
        """Return a graph in memory on a device as a whole."""
        features = self.features(storage, device)
        return GraphRows.in_memory(features, self.support.to(device), self.paths(device))

    def paths(self, device: torch.device) -> Tensor | None:
        """Return the means along paths to other node types, `[nodes, columns]`; None without any."""
        columns = self.graph.path_columns
        return None if columns is None else torch.from_numpy(columns.values).to(device)

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
            return WholeGraph(features, self.support.to(device), hops, compared, self.paths(device))
        members = assign_objectives(settings["objective"], settings["n_models"])
        return SampledBatches(
            shard_rows(self.rows(), ranks or Ranks(), in_memory=self.graph.in_memory),
            hops,
            device,
            batch_size=settings["batch_size"],
            num_neighbors=settings["num_neighbors"],
            batches=settings["batches"],
            paired=any(OBJECTIVES[name].needs_pairs for name in members),
        )


def undirected_support(graph: GraphLike, *, self_loops: bool) -> Support:
    """Return the undirected edges of a graph as a support, with or without self-loops."""
    rows = graph.adjacency(undirected=True, self_loops=self_loops)
    return support_from_rows(*rows, start="normalized", normalize=False)


def step_matrix(
    graph: GraphLike, kind: str, device: torch.device | None = None, *, self_loops: bool = True
) -> StepMatrix:
    """Return the matrix of one smoothing step; rows of a graph on disk are read on demand."""
    support = undirected_support(graph, self_loops=self_loops)
    return StepMatrix(support, kind, device if graph.in_memory else None)


def build_smoother(graph: GraphLike, kind: str, strength: float, device: torch.device | None) -> Smoother:
    """Return the smoothing of a graph's embeddings; a strength of 0 changes nothing."""
    return Smoother(step_matrix(graph, kind, device) if strength else None, strength)


@dataclass(frozen=True, eq=False)
class TrainingOrder:
    """The order of nodes and columns in which random numbers are drawn: it follows from the graph alone."""

    graph: Graph  # in this order
    nodes: npt.NDArray[np.int64]
    columns: list[int] | None  # None for the order of the graph

    @classmethod
    def of(cls, graph: GraphLike, settings: Mapping[str, Any]) -> TrainingOrder | None:
        """Return the order for a graph; None for its own order, which mini-batches keep as on disk."""
        batches = settings["batch_size"] is not None
        if batches or graph.provenance.kind in FIXED_ORDER or not isinstance(graph, Graph):
            return None
        names = graph.feature_names
        columns = sorted(range(len(names)), key=names.__getitem__) if names else None
        columns = None if columns == list(range(len(names))) else columns
        graph = graph if columns is None else with_columns(graph, columns, ())
        nodes = canonical_order(graph)
        return cls(reorder_nodes(graph, nodes), nodes, columns)

    def restore(self, encoder: EncoderStack, history: History, trained: Support, support: Support) -> None:
        """Put what was learned for each node, edge and column back into the order of the graph."""
        position = torch.from_numpy(np.argsort(self.nodes))
        if history.difficulty is not None:
            history.difficulty = history.difficulty[:, position]
        if encoder.edges.learns:
            entries, _ = find_entries(trained.pattern, support.pattern, position)
            encoder.edges.logit.data = encoder.edges.logit.data[:, entries.to(encoder.edges.logit.device)]
        if self.columns is not None:
            back = torch.from_numpy(np.argsort(self.columns)).to(encoder.input.weight.device)
            encoder.input.weight.data = encoder.input.weight.data[:, back]
            encoder.input.mask_token.data = encoder.input.mask_token.data[:, :, back]


def choose_smoothing(settings: dict[str, Any], prepared: PreparedGraph) -> float:
    """Return the strength of smoothing as set, or for "auto" as the features suggest."""
    given = settings["smoothing"]
    return suggest_smoothing(prepared.rows()) if isinstance(given, str) else float(given)


def path_counts(graph: GraphLike) -> PathCounts:
    """Return the number of relations among the nodes of a graph, and the columns of its paths."""
    columns = graph.path_columns
    return PathCounts(len(graph.relation_names), () if columns is None else columns.widths)


def stack_builder(
    settings: dict[str, Any], prepared: PreparedGraph, device: torch.device, *, saved: bool = False
) -> Callable[[int], EncoderStack]:
    """Return a function from a number of models to a stack of them, not yet initialized.

    In mini-batches the stack has no edge weights until training ends; that of a saved model has them.
    """
    entries = prepared.support.entries if saved or settings["batch_size"] is None else 0
    shape, columns = Shape.of(settings), prepared.graph.num_features
    tokens = path_counts(prepared.graph)
    return lambda models: shape.build(columns, entries, models, device, tokens)


def standardizes_columns(settings: Mapping[str, Any]) -> bool:
    """Whether the columns of the models are standardized: of different objectives, or beside other blocks."""
    several = len(set(assign_objectives(settings["objective"], settings["n_models"]))) > 1
    return several or bool(settings["input_weight"])


def fit_blocks(
    settings: Mapping[str, Any], prepared: PreparedGraph, order: TrainingOrder | None, device: torch.device
) -> InputBlocks | None:
    """Return the blocks of input features, fitted in the order of training; None without."""
    if not settings["input_weight"]:
        return None
    neighbours = undirected_support(prepared.graph, self_loops=False)
    blocks = InputBlocks.fit(prepared.rows(), neighbours, device if prepared.graph.in_memory else CPU)
    if order is None or order.columns is None:
        return blocks
    return blocks.with_columns(np.argsort(order.columns).tolist())


def block_widths(blocks: InputBlocks, fitted: GraphLike) -> list[int]:
    """Return the number of columns of each block: F, D and, of link columns L, `[L | mean of neighbours]`."""
    links, paths = fitted.link_columns, fitted.path_columns
    widths = blocks.widths if links is None else [*blocks.widths, 2 * len(links.names)]
    return widths if paths is None else [*widths, paths.values.shape[1]]


def expected_width(settings: Mapping[str, Any], graph: GraphLike) -> int:
    """Return the largest number of columns that the embedding of a graph can have with these settings."""
    with torch.device("meta"):
        one = Shape.of(settings).build(graph.num_features, 0, 1, torch.device("meta"), path_counts(graph))
    width = one.out_channels + one.num_tokens * one.channels * bool(settings["concat_tokens"])
    width *= settings["n_models"]
    if settings["input_weight"]:
        links, paths = graph.link_columns, graph.path_columns
        width += sum(min(parts * graph.num_features, COMPONENTS) for parts in (2, 1))
        width += 0 if links is None else 2 * len(links.names)
        width += 0 if paths is None else paths.values.shape[1]
    return int(width if settings["dimensions"] is None else min(width, settings["dimensions"]))


def fill_blocks(
    filled: Tensor,
    blocks: InputBlocks,
    graph: GraphLike,
    rows: GraphRows,
    width: int = COLUMNS,
    sharing: Sharing | None = None,
) -> list[float]:
    """Compute the blocks of a graph; return the root mean squared length of the rows of each.

    Of several processes each computes some of the columns.
    """
    sharing = sharing or Sharing()
    device, first, widths = filled.device, sum(blocks.widths), block_widths(blocks, graph)
    if sum(widths) != filled.shape[1]:  # link columns that the fit did not have
        widths = blocks.widths
    step = step_matrix(graph, "walks", device, self_loops=False)
    walks = build_smoother(graph, "walks", DIFFUSION, device)
    squares = torch.zeros(filled.shape[1], dtype=torch.float64)
    for some, values in blocks.to(device).columns(rows, step, walks, width, sharing):
        filled[:, some] = values
        squares[some] = values.square().sum(dim=0, dtype=torch.float64).cpu()
    if graph.path_columns is not None:  # of a graph in memory, which is not shared
        values = torch.from_numpy(graph.path_columns.values).to(device)
        filled[:, -values.shape[1] :] = values
        squares[-values.shape[1] :] = values.square().sum(dim=0, dtype=torch.float64).cpu()
    if graph.link_columns is not None and len(widths) > len(blocks.widths):
        links = graph.link_columns.values
        for number in sharing.deal(-(-links.shape[1] // width)):
            at = number * width
            own = torch.from_numpy(links[:, at : at + width].copy()).to(device)
            for start, values in ((first + at, own), (first + links.shape[1] + at, step @ own)):
                filled[:, start : start + own.shape[1]] = values
                total = values.square().sum(dim=0, dtype=torch.float64)
                squares[start : start + own.shape[1]] = total.cpu()
    sharing.complete()
    squares = sharing.sum(squares)
    return [float(part.sum() / len(filled)) ** 0.5 for part in torch.split(squares, widths)]


def scale_blocks(filled: Tensor, widths: list[int], lengths: Sequence[float], size: float) -> None:
    """Scale blocks whose rows have the given root mean squared lengths to a length of `size`."""
    for part, length in zip(torch.split(filled, widths, dim=1), lengths, strict=True):
        part.mul_(size / length if length > 0 else 0.0)


def snapshot_read_out(
    prepared: PreparedGraph,
    settings: dict[str, Any],
    smoothing: float,
    device: torch.device,
    order: TrainingOrder | None,
    blocks: InputBlocks | None,
) -> Callable[[range, Tensor], Tensor]:
    """Return the read-out of snapshots, the same as that of a fitted embedding, in the order of the graph.

    Of models that are trained in several groups, the last group has the blocks of input features.
    """
    graph, models = prepared.graph, settings["n_models"]
    position = None if order is None else torch.from_numpy(np.argsort(order.nodes)).to(device)
    smoother = build_smoother(graph, settings["smoother"], smoothing, device)
    filled: list[Tensor] = []

    def input_columns(models_width: int) -> Tensor:
        assert blocks is not None
        if not filled:
            rows = prepared.on_device(settings["feature_storage"], device)
            widths = block_widths(blocks, graph)
            filled.append(torch.empty(graph.num_nodes, sum(widths), device=device))
            lengths = fill_blocks(filled[0], blocks, graph, rows)
            scale_blocks(filled[0], widths, lengths, settings["input_weight"] * models_width**0.5)
        return filled[0]

    def read_out(group: range, rows: Tensor) -> Tensor:
        rows = rows if position is None else rows[position]
        rows = smoother(ColumnScaler.fit(rows)(rows) if standardizes_columns(settings) else rows)
        if blocks is None or group.stop < models:
            return rows
        return torch.cat([rows, input_columns(models * rows.shape[1] // len(group))], dim=1)

    return read_out
