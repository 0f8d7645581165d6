"""Validate features, edges, labels and masks, and build the `Graph` that all other code trusts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from torch import Tensor

from h3gnn.errors import GraphError
from h3gnn.graphs.graph import Graph, content_hash
from h3gnn.graphs.ids import is_missing
from h3gnn.graphs.provenance import Kind, Provenance, Repair
from h3gnn.graphs.scaling import torch_features
from h3gnn.resources import check_memory

Locate = Callable[[str, int], str]
"""Names a position for error messages: ("features", 6) -> "features.csv, line 8"."""

DATES = (
    "dates or times, which are not numbers: convert them, for example to days since the first "
    "((when - when.min()).dt.days), or leave them out"
)

SPARSE_BELOW = 0.1
"""Sparse input stays sparse below this density; above it, dense storage is smaller and faster."""


def check_graph(
    features: Any,
    edge_index: Any,
    *,
    edge_weight: Any = None,
    labels: Any = None,
    class_names: Sequence[str] = (),
    targets: Any = None,
    target_name: str = "",
    masks: tuple[Any, Any, Any] | None = None,
    node_ids: npt.NDArray[Any] | None = None,
    feature_names: Sequence[str] = (),
    source: str = "arrays",
    kind: Kind = "arrays",
    structural: bool = False,
    repairs: Sequence[Repair] = (),
    locate: Locate | None = None,
) -> Graph:
    """Validate arrays, make safe repairs, and return a `Graph`.

    Args:
        features: `[nodes, features]`: NumPy array, torch tensor or scipy sparse matrix of finite numbers.
        edge_index: `[2, edges]` integers, source above target.
        edge_weight: `[edges]` positive numbers; weights of duplicate edges are added.
        labels: `[nodes]` integers, negative where unknown.
        class_names: the name of each class; by default the numbers themselves.
        targets: `[nodes]` numbers to predict in place of classes, NaN where unknown.
        target_name: name of their column, if known.
        masks: train, validation and test masks, each bool `[nodes]` or `[nodes, splits]`.
        node_ids, feature_names: given by the user, if any.
        source, kind, structural, repairs: the graph's provenance.
        locate: names a position in the user's files for error messages.
    """
    where = locate or (lambda part, index: f"{part}, position {index}")
    checked_features = check_features(features, where)
    nodes = checked_features.shape[0]
    edges, weights, merged = _check_edges(edge_index, edge_weight, nodes, where, hint=locate is None)
    checked_labels, names = _check_labels(labels, class_names, nodes, where)
    numbers = _check_targets(targets, labels, nodes, where)
    train, val, test = _check_masks(masks, nodes)
    ids = np.arange(nodes, dtype=np.int64) if node_ids is None else _check_ids(node_ids, nodes, where)
    digest = content_hash(checked_features, edges, weights, checked_labels, train, val, test, targets=numbers)
    return Graph(
        features=checked_features,
        edge_index=edges,
        provenance=Provenance(source, digest, kind, structural, (*repairs, *merged)),
        edge_weight=weights,
        labels=checked_labels,
        class_names=names,
        targets=numbers,
        target_name=target_name,
        train_mask=train,
        val_mask=val,
        test_mask=test,
        node_ids=ids,
        has_ids=node_ids is not None,
        feature_names=tuple(feature_names),
    )


def check_features(features: Any, where: Locate) -> Tensor:
    """Return float32 features `[nodes, features]`, dense, or CSR for sparse input."""
    if isinstance(features, Tensor) and features.layout != torch.strided:
        features = _scipy_matrix(features)
    if is_sparse(features):
        _check_table(features.shape)
        check_size(features)
        matrix = sp.csr_matrix(features)
        matrix.sum_duplicates()
        check_numbers(matrix.data, "features")
        if _stays_sparse(matrix):
            matrix.data = _finite(matrix.data, lambda at: _cell(matrix, at), where)
            return torch_features(matrix)
        features = matrix.toarray()
    array = as_numpy(features, "the features")
    _check_table(array.shape)
    check_numbers(array, "features")
    return torch.from_numpy(_finite(array, lambda at: divmod(at, array.shape[1]), where))


def _finite(
    array: npt.NDArray[Any], cell: Callable[[int], tuple[int, int]], where: Locate
) -> npt.NDArray[np.float32]:
    """Return values as float32, all finite; `cell` returns row and column of a value."""
    with np.errstate(over="ignore"):
        values = np.array(array, dtype=np.float32, order="C")
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        row, column = cell(int(bad[0]))
        number = float(array.flat[bad[0]])
        special = "NaN" if np.isnan(number) else "infinity"
        name = f"{number:g}, beyond float32," if np.isfinite(number) else special
        place = f"{where('features', row)}, column {column + 1}"
        message = f"{place}: {name} is not a valid feature value; impute it or drop the column"
        raise GraphError(message, code="feature-not-finite")
    return values


def _cell(matrix: Any, at: int) -> tuple[int, int]:
    return int(np.searchsorted(matrix.indptr, at, side="right")) - 1, int(matrix.indices[at])


def _scipy_matrix(features: Tensor) -> Any:
    """Return a sparse tensor as a scipy matrix without making it dense."""
    _check_table(features.shape)
    check_size(features)
    entries = torch.Tensor.to_sparse(features.detach().cpu()).coalesce()
    rows, columns = entries.indices().numpy()
    values = as_numpy(entries.values(), "the features")
    return sp.csr_matrix((values, (rows, columns)), shape=(features.shape[0], features.shape[1]))


def _check_table(shape: Sequence[int]) -> None:
    if len(shape) != 2:
        message = f"the features must be a table with one row per node, but have {len(shape)} dimension(s)"
        raise GraphError(message, code="features-not-a-table")
    if shape[0] == 0:
        raise GraphError("the graph is empty: the features have no rows", code="graph-empty")
    if shape[1] == 0:
        message = "the features have no columns; leave them out to use structural features"
        raise GraphError(message, code="features-empty")


def check_numbers(array: npt.NDArray[Any], part: str) -> None:
    """Raise if an array holds values that are not real numbers."""
    if np.iscomplexobj(array):
        raise GraphError(f"the {part} hold complex numbers. Complex data not supported", code="not-numbers")
    if holds_dates(array):
        raise GraphError(f"the {part} hold {DATES}", code="dates")
    if array.dtype.kind not in "biufOUS":
        raise GraphError(f"the {part} are not numbers: {array.dtype}", code="not-numbers")
    if array.dtype.kind in "OUS":
        try:
            array.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise GraphError(f"the {part} are not numbers: {error}", code="not-numbers") from None


def holds_dates(values: Any) -> bool:
    """Return whether an array or column holds dates or time spans, which NumPy would convert to counts."""
    kind = getattr(values.dtype, "kind", "O")
    if kind == "O":
        cells = np.asarray(values, dtype=object).ravel()
        return any(isinstance(cell, date | timedelta | np.datetime64 | np.timedelta64) for cell in cells)
    return kind in "mM"


def as_numpy(values: Any, part: str) -> npt.NDArray[Any]:
    """Return values as an array."""
    try:
        if isinstance(values, Tensor):
            values = values.detach().cpu()
            plain: npt.NDArray[Any] = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
            return plain
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError):
        message = f"{part} are not an array; do all rows have the same length?"
        raise GraphError(message, code="not-an-array") from None


def is_sparse(values: Any) -> bool:
    """Return whether this is a scipy sparse matrix or array; `sp.issparse` would narrow the type."""
    return bool(sp.issparse(values))


def is_frame(values: Any) -> bool:
    """Whether an object is one of pandas, without importing pandas."""
    return any(cls.__module__.partition(".")[0] == "pandas" for cls in type(values).__mro__)


def is_table(values: Any) -> bool:
    """Whether an object is a data frame of pandas or Polars, or an Arrow table."""
    return hasattr(values, "columns") and (is_frame(values) or hasattr(values, "to_pandas"))


def as_frame(table: Any) -> Any:
    """Convert a Polars or Arrow table to a DataFrame; other objects are returned unchanged."""
    return table.to_pandas() if hasattr(table, "to_pandas") and not is_frame(table) else table


def column_names(table: Any) -> tuple[str, ...]:
    """Return the column names of a DataFrame; () without names, or if they only count."""
    if not is_frame(table) or not hasattr(table, "columns"):
        return ()
    names = tuple(str(name) for name in table.columns)
    again = next((name for position, name in enumerate(names) if name in names[:position]), None)
    if again is not None:
        message = f"{again!r} names more than one column of the features: rename one of them"
        raise GraphError(message, code="column-duplicate")
    return () if names == counted(len(names)) else names


def counted(columns: int) -> tuple[str, ...]:
    """Return the names of columns without names: their positions."""
    return tuple(str(position) for position in range(columns))


def numbers_of_table(features: Any) -> Any:
    """Return the numbers of an array or a sparse matrix, `[nodes, features]`."""
    kept = is_sparse(features) or isinstance(features, Tensor)
    table = features if kept else as_numpy(features, "the features")
    _check_table(table.shape)
    return table


def _check_edges(
    edge_index: Any, edge_weight: Any, nodes: int, where: Locate, *, hint: bool
) -> tuple[Tensor, Tensor | None, list[Repair]]:
    edges = as_numpy(edge_index, "the edges")
    if edges.ndim != 2 or edges.shape[0] != 2:
        message = f"edge_index must have the shape [2, edges], not {list(edges.shape)}"
        raise GraphError(message, code="edge-index-shape")
    if edges.size and edges.dtype.kind not in "iu":
        raise GraphError(f"edge_index must hold integers, not {edges.dtype}", code="edge-index-not-integers")
    edges = edges.astype(np.int64)
    outside = np.flatnonzero(((edges < 0) | (edges >= nodes)).any(axis=0))
    if outside.size:
        first = int(outside[0])
        ends = edges[:, first]
        unknown = int(ends[(ends < 0) | (ends >= nodes)][0])
        advice = "; in cross-validation, embed the whole graph once and split its embedding" if hint else ""
        raise GraphError(
            f"{where('edges', first)}: node {unknown} is unknown; "
            f"the features describe nodes 0 to {nodes - 1}{advice}",
            code="edge-node-unknown",
        )
    weights = None if edge_weight is None else _check_weights(edge_weight, edges.shape[1], where)
    keys = edges[1] * nodes + edges[0]
    unique, first_of, group = np.unique(keys, return_index=True, return_inverse=True)
    repairs = []
    if merged := edges.shape[1] - unique.size:
        repairs.append(duplicate_edges(merged))
    if loops := int((edges[0, first_of] == edges[1, first_of]).sum()):
        repairs.append(Repair("self-loops", f"{loops:,} self-loop(s) in the data", loops))
    sorted_edges = torch.from_numpy(np.ascontiguousarray(edges[:, first_of]))
    if weights is None:
        return sorted_edges, None, repairs
    summed = np.bincount(group, weights=weights, minlength=unique.size).astype(np.float64)
    return sorted_edges, torch.from_numpy(stored_weights(summed)), repairs


def duplicate_edges(count: int) -> Repair:
    """Record that duplicate edges are merged."""
    return Repair("duplicate-edges", f"{count:,} duplicate edge(s) merged", count)


def _check_weights(edge_weight: Any, edges: int, where: Locate) -> npt.NDArray[np.float64]:
    weights = as_numpy(edge_weight, "the edge weights")
    if weights.shape != (edges,):
        message = f"{edges} edges but weights of shape {list(weights.shape)}"
        raise GraphError(message, code="edge-weight-shape")
    check_numbers(weights, "edge weights")
    weights = weights.astype(np.float64)
    bad = np.flatnonzero(~valid_weights(weights))
    if bad.size:
        raise GraphError(
            f"{where('edges', int(bad[0]))}: the edge weight {weights[bad[0]]:g} is not a positive number",
            code="edge-weight-not-positive",
        )
    return weights


WEIGHT_ABOVE, WEIGHT_BELOW = 2.0**-150, 2.0**128 - 2.0**103
"""Weights between these two, exclusively, are positive and finite when rounded to float32."""


def valid_weights(weights: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Return which float64 weights may be stored: those that are positive and finite in float32."""
    return np.asarray((weights > WEIGHT_ABOVE) & (weights < WEIGHT_BELOW))


def stored_weights(weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """Return sums of valid weights as float32; a sum beyond its range becomes its largest number."""
    return np.minimum(weights, np.finfo(np.float32).max).astype(np.float32)


def _check_labels(
    labels: Any, class_names: Sequence[str], nodes: int, where: Locate
) -> tuple[Tensor | None, tuple[str, ...]]:
    if labels is None:
        return None, ()
    values = as_numpy(labels, "the labels")
    if values.shape != (nodes,):
        raise GraphError(f"{nodes} nodes but labels of shape {list(values.shape)}", code="labels-shape")
    if values.dtype.kind not in "iub":
        message = f"labels must be integers with -1 for unknown, not {values.dtype}"
        raise GraphError(message, code="labels-not-integers")
    values = np.maximum(values.astype(np.int64), -1)
    if not class_names and values.max(initial=-1) >= nodes:  # arbitrary numbers, not 0 to classes - 1
        known = np.unique(values[values >= 0])
        class_names = tuple(str(value) for value in known.tolist())
        values = np.where(values < 0, -1, np.searchsorted(known, values))
    names = tuple(class_names) or tuple(str(i) for i in range(int(values.max(initial=-1)) + 1))
    beyond = np.flatnonzero(values >= len(names))
    if beyond.size:
        raise GraphError(
            f"{where('labels', int(beyond[0]))}: label {values[beyond[0]]} but only {len(names)} class names",
            code="label-without-class-name",
        )
    return torch.from_numpy(values), names


def _check_targets(targets: Any, labels: Any, nodes: int, where: Locate) -> Tensor | None:
    if targets is None:
        return None
    if labels is not None:
        raise GraphError("give either classes or numbers to predict, not both", code="labels-and-targets")
    values = as_numpy(targets, "the targets")
    if values.shape != (nodes,):
        raise GraphError(f"{nodes} nodes but targets of shape {list(values.shape)}", code="labels-shape")
    check_numbers(values, "targets")
    values = values.astype(np.float64)
    bad = np.flatnonzero(np.isinf(values))
    if bad.size:
        message = f"{where('targets', int(bad[0]))}: infinity cannot be predicted; leave the cell empty"
        raise GraphError(message, code="target-not-finite")
    return torch.from_numpy(values)


def _check_masks(
    masks: tuple[Any, Any, Any] | None, nodes: int
) -> tuple[Tensor, Tensor, Tensor] | tuple[None, None, None]:
    if masks is None:
        return None, None, None
    checked = []
    for name, mask in zip(("train", "validation", "test"), masks, strict=True):
        values = as_numpy(mask, f"the {name} mask")
        if values.dtype.kind not in "biu" or not np.isin(values, (0, 1)).all():
            message = f"the {name} mask must hold True and False, not {values.dtype}"
            raise GraphError(message, code="mask-not-boolean")
        values = values.astype(bool)
        values = values[:, None] if values.ndim == 1 else values
        if values.ndim != 2 or values.shape[0] != nodes:
            message = f"the {name} mask has the shape {list(values.shape)}, not [{nodes}, splits]"
            raise GraphError(message, code="mask-shape")
        checked.append(values)
    if len({mask.shape[1] for mask in checked}) != 1:
        message = "train, validation and test masks have different numbers of splits"
        raise GraphError(message, code="mask-shape")
    if (checked[0] & checked[1] | checked[0] & checked[2] | checked[1] & checked[2]).any():
        raise GraphError("train, validation and test masks overlap in the same split", code="masks-overlap")
    train, val, test = (torch.from_numpy(np.ascontiguousarray(mask)) for mask in checked)
    return train, val, test


def _check_ids(node_ids: npt.NDArray[Any], nodes: int, where: Locate) -> npt.NDArray[Any]:
    if node_ids.shape != (nodes,):
        raise GraphError(f"{nodes} rows of features but {node_ids.size} node ids", code="node-ids-shape")
    unique, first_of = np.unique(node_ids, return_index=True)
    if unique.size != nodes:
        row = int(np.setdiff1d(np.arange(nodes), first_of)[0])
        message = f"{where('features', row)}: the node id {node_ids[row]!r} is not unique"
        raise GraphError(message, code="node-id-duplicate")
    return node_ids


def check_size(matrix: Any) -> None:
    """Reject a sparse matrix or tensor that does not fit in memory, sparse or, if it is not sparse, dense."""
    rows, columns = matrix.shape
    if max(rows, columns) >= 2**62:
        raise GraphError(f"{rows:,} x {columns:,} exceed the index range", code="too-large")
    sparse = _stays_sparse(matrix)
    needed = 24 * (rows + _stored(matrix)) if sparse else 12 * rows * columns
    what = "sparse" if sparse else "dense"
    check_memory(needed, f"{what} features of {rows:,} x {columns:,}", GraphError)


def _stored(matrix: Any) -> int:
    return int(matrix._nnz() if isinstance(matrix, Tensor) else matrix.nnz)


def _stays_sparse(matrix: Any) -> bool:
    return bool(0 < _stored(matrix) < SPARSE_BELOW * matrix.shape[0] * matrix.shape[1])


SPLIT_NAMES = {
    **dict.fromkeys(("train", "training"), 0),
    **dict.fromkeys(("val", "valid", "validation", "dev"), 1),
    **dict.fromkeys(("test", "testing"), 2),
}
"""Names of the train (0), validation (1) and test (2) part of a split."""

Mask = npt.NDArray[np.bool_]


def as_classes(values: Sequence[Any]) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    """Number the classes in order, integers by value and strings alphabetically; missing values become -1."""
    known = [_plain(value) for value in values]
    integers = all(value is None or isinstance(value, int) for value in known)
    distinct = {value for value in known if value is not None}
    ordered = sorted(distinct) if integers else sorted({str(value) for value in distinct})
    number = {str(value): position for position, value in enumerate(ordered)}
    codes = [-1 if value is None else number[str(value)] for value in known]
    return np.array(codes, dtype=np.int64), tuple(str(value) for value in ordered)


def _plain(value: Any) -> Any:
    """Return an int, a string, or None for missing; NumPy scalars and integral floats become ints."""
    if is_missing(value):
        return None
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    return value if isinstance(value, int) else (str(value) or None)


def as_labels(values: Any) -> npt.NDArray[np.int64]:
    """Return one integer per node; `[nodes, 1]` and integral floats are accepted, NaN is unknown."""
    labels = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if labels.dtype.kind == "f":
        labels = np.where(np.isnan(labels), -1, labels)
        if not (np.isfinite(labels) & (labels == np.floor(labels))).all():
            raise GraphError("labels must be classes, not real numbers", code="labels-not-integers")
    elif labels.dtype.kind not in "iub":
        raise GraphError(f"labels must be integers, not {labels.dtype}", code="labels-not-integers")
    return labels.astype(np.int64)


def as_masks(train: Any, val: Any, test: Any) -> tuple[Any, Any, Any] | None:
    """Return three masks `[nodes, splits]`; a missing one is empty, one column serves all splits."""
    if train is None:
        return None
    given = [
        torch.zeros(len(train)) if mask is None else torch.as_tensor(mask) for mask in (train, val, test)
    ]
    masks = [mask.bool().reshape(mask.shape[0], -1) for mask in given]
    splits = max(mask.shape[1] for mask in masks)
    first, second, third = (mask.expand(-1, splits) if mask.shape[1] == 1 else mask for mask in masks)
    return first, second, third


def split_masks(values: Sequence[Any], place: Callable[[int], str]) -> tuple[Mask, Mask, Mask]:
    """Return the train, validation and test masks of a column of split names; missing names are in no mask.

    `place` returns the name of a row for error messages.
    """
    words = ["" if is_missing(value) else str(value).strip().lower() for value in values]
    code = {word: SPLIT_NAMES.get(word, -1) for word in set(words)}
    if unknown := {word for word in code if code[word] < 0} - {"", "none"}:
        row = next(row for row, word in enumerate(words) if word in unknown)
        message = f"{place(row)}: {str(values[row])!r} is not one of train, val, test"
        raise GraphError(message, code="split-unknown")
    codes = np.array([code[word] for word in words], dtype=np.int64)
    return codes == 0, codes == 1, codes == 2
