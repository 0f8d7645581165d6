"""Write tables of any size as a graph in memory-mapped files, with DuckDB as the engine.

A database in a hidden folder beside the target keeps the finished stages: all features, then one group of
edges after another. A repeated call keeps these and starts the others again.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from h3gnn.errors import GraphError, named
from h3gnn.graphs.checks import WEIGHT_ABOVE, WEIGHT_BELOW, check_features, duplicate_edges, valid_weights
from h3gnn.graphs.formats import array_place, read_array
from h3gnn.graphs.graph import SEED, random_splits, random_splits_repair, stratify
from h3gnn.graphs.ids import is_plain, quoted
from h3gnn.graphs.link_columns import LinkPlan
from h3gnn.graphs.provenance import Repair
from h3gnn.graphs.scaling import BLOCK_ROWS, MomentSums
from h3gnn.ondisk import mapped
from h3gnn.ondisk.engine import Edges, Work, as_edges, index_type, work_folder, write_rows
from h3gnn.ondisk.links import LinkSource, open_links, write_links
from h3gnn.ondisk.mapped import MappedGraph
from h3gnn.storage.atomic import local
from h3gnn.storage.schema import check_values
from h3gnn.tables.edges import FIX_COLUMN, FIX_WEIGHT, EdgeTable, check_one_type, open_edges
from h3gnn.tables.features import FeatureOptions, FeatureTable, open_features
from h3gnn.tables.files import MOST_SHOWN, Problems
from h3gnn.tables.leaks import Target, check_leaks, is_same_target
from h3gnn.tables.plan import plain_plan
from h3gnn.tables.read import LabelTable, open_labels
from h3gnn.tables.reader import (
    FIX_DUPLICATE,
    FIX_ID,
    FIX_NUMBER,
    FIX_UNKNOWN,
    LoadedTable,
    arrow_ids,
    decode_numbers,
    odd_list,
)
from h3gnn.tables.roles import Column, is_no_feature

MADE_BY = 4
"""Version of the hidden folder: one of another version is removed."""
BLOCK_BYTES = 64 << 20
"""Size of a block of features; wide tables have fewer rows in each."""
RANGE_ROWS = 1 << 25
"""Edges that are one stage, at least."""
INTEGER = "CASE WHEN TRY_CAST({0} AS BIGINT)::VARCHAR = {0} THEN TRY_CAST({0} AS BIGINT) END"
"""The integer of a text in canonical form, which "007" and "+7" are not."""

Progress = Callable[[str, float], None]
"""Called with a stage ("features", "edges", "sorting") and its finished share, 0 to 1."""


def prepare_graph(
    edges: str | Path,
    features: str | Path,
    out: str | Path,
    *,
    source_column: Column | None = None,
    target_column: Column | None = None,
    weight_column: Column | None = None,
    node_column: Column | None = None,
    feature_columns: Sequence[Column] | None = None,
    columns: Mapping[str, str] | None = None,
    labels: str | Path | None = None,
    label_id_column: Column | None = None,
    label_column: Column | None = None,
    split_columns: Sequence[Column] | None = None,
    task: str = "auto",
    header: bool | None = None,
    delimiter: str | None = None,
    link_columns: str | bool | LinkPlan = "auto",
    bipartite: bool | None = None,
    memory: int | None = None,
    progress: Progress = lambda stage, share: None,
) -> MappedGraph:
    """Write a graph folder and open it; the folder appears when it is complete.

    An interrupted call keeps its finished stages, and the same call resumes. Other files or columns start
    again. Columns, header and delimiter are given as in `read_graph`.

    Args:
        edges: CSV, TSV or Parquet: one edge per row.
        features: CSV, TSV or Parquet with an id column; or NPY, NPZ, whose row numbers are the ids. A sparse
            matrix of scipy (NPZ) is read as a whole and stays sparse.
        out: the folder to write; it must not hold anything else.
        columns: the kinds of some columns of the edges; those of the others follow from the first rows.
        labels: CSV, TSV or Parquet: one node per row, with its class or number and perhaps its splits; read
            as a whole. Without splits, ten are drawn.
        task, link_columns, bipartite: see `read_graph`; ids of two types must differ in the tables.
        memory: limit for joining and sorting in bytes; None for half of the available memory. Blocks of
            features and labels add to it.
        progress: called with each stage and its finished share.
    """
    out = Path(out)
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not mapped.is_prepared(out))):
        message = f"{out} exists and is no prepared graph; choose another folder"
        raise GraphError(message, code="folder-in-use")
    out.parent.mkdir(parents=True, exist_ok=True)
    style: dict[str, Any] = {"header": header, "delimiter": delimiter}
    table = open_edges(edges, source_column, target_column, weight_column, style)
    check_one_type(table.columns.ends, table.table.path, 0, bipartite=bipartite)
    table, links = open_links(table, link_columns, columns or {})
    label_table = None
    if labels is not None:
        label_table = open_labels(labels, label_id_column, label_column, split_columns, style)
    hidden = label_table.class_name if label_table is not None and label_table.table.header else None
    source = _open_features(local(features), node_column, feature_columns, hidden, style)
    with work_folder(out, _made_of(table, source, links, style), memory) as work:
        stored, sums = _feature_stage(work, source, progress)
        _edge_stage(work, links, source.path, sums.rows, progress)
        both = "SELECT count(*) FROM (SELECT source FROM edges INTERSECT SELECT target FROM edges)"
        shared = work.run(both)[0][0] if bipartite is None else 0
        check_one_type(table.columns.ends, table.table.path, shared, bipartite=bipartite)
        count, merged = _sort_stage(work, sums.rows, progress, weighted=bool(table.weight))
        repairs = [*source.repairs, *table.repairs, *([duplicate_edges(merged)] if merged else [])]
        about: dict[str, Any] = {} if stored is None else {"stored": stored}
        if label_table is not None:
            known, drawn = _write_labels(work, label_table, sums.rows, source.path, task)
            about, repairs = {**about, **known}, repairs + drawn
        target = _target(work.folder, hidden if label_table is not None else None)
        plan, of_links = write_links(work, links, sums.rows, merged, target)
        about, repairs = about | ({} if plan is None else {"links": plan.as_dict()}), repairs + of_links
        if source.table is not None:
            _write_ids(work)
        files = [Path(edges), Path(features), *([] if labels is None else [Path(labels)])]
        about |= {
            "format": mapped.FORMAT,
            "format_version": mapped.FORMAT_VERSION,
            "nodes": sums.rows,
            "edges": count,
            "features": len(sums.mean),
            "weighted": bool(table.weight),
            "ids": "position" if source.table is None else "named",
            "source": ", ".join(file.name for file in files),
            **_hashes(work.folder),
            "kind": "files",
            "structural": False,
            "repairs": [repair.as_dict() for repair in repairs],
            "moments": asdict(sums.moments()),
            "feature_names": source.names(len(sums.mean)),
        }
        check_values(mapped.PREPARED, about, out / mapped.DESCRIPTION, GraphError, "cannot be written")
        (work.folder / mapped.DESCRIPTION).write_text(json.dumps(about, indent=1))
    graph = mapped.open_mapped(out)
    if graph.labels is not None and feature_columns is None:
        check_leaks(graph, graph.labels.numpy(), hidden)
    return graph


def _target(folder: Path, name: str | None) -> Target | None:
    """Return what is to be predicted, from the files of labels, if there are any."""
    if (folder / mapped.LABELS).is_file():
        return Target(name, np.fromfile(folder / mapped.LABELS, dtype=np.int32).astype(np.int64))
    if (folder / mapped.TARGETS).is_file():
        return Target.of_numbers(name, np.fromfile(folder / mapped.TARGETS))
    return None


def _made_of(
    edges: EdgeTable, source: FeatureSource, links: LinkSource, style: dict[str, Any]
) -> dict[str, Any]:
    """Return all that features and edges of a folder depend on."""
    files = {named(str(path.resolve())): path for path in (edges.table.path, source.path)}
    return {
        "made_by": MADE_BY,
        "files": {place: _sha256(path) for place, path in files.items()},
        "style": style,
        "edges": [edges.ends, edges.weight, [asdict(one) for one in links.columns]],
        "features": None if source.table is None else [source.table.key, source.table.chosen],
    }


@dataclass(frozen=True)
class FeatureSource:
    """Features of a file: the chosen columns of a `table`, or the `values` of an array, numbered from 0."""

    path: Path
    values: npt.NDArray[Any] | Tensor | None = None
    table: FeatureTable | None = None
    repairs: tuple[Repair, ...] = ()

    def place(self, row: int, column: int, width: int) -> str:
        """Name a cell of features of this width."""
        if self.table is None:
            return array_place(self.path)(row)
        chosen = self.table.chosen
        return self.table.table.place(row, chosen[column] if len(chosen) == width else None)

    def names(self, width: int) -> list[str]:
        """Return one name per feature, or none if the file does not give them."""
        if self.table is None or not self.table.table.header:
            return []
        listed = plain_plan(self.table.names, width).names
        return list(listed) if len({*listed}) == width else []


def _open_features(
    path: Path,
    node_column: Column | None,
    columns: Sequence[Column] | None,
    label_name: str | None,
    style: dict[str, Any],
) -> FeatureSource:
    """Open the features without the column that holds the labels."""
    if path.suffix.lower() == ".npy":
        return FeatureSource(path, read_array(path, mapped=True))
    if path.suffix.lower() == ".npz":
        matrix = check_features(read_array(path), lambda _, row: array_place(path)(row))
        return FeatureSource(path, matrix if matrix.layout == torch.sparse_csr else matrix.numpy())
    table, repairs = open_features(path, FeatureOptions(node_column, columns, style)), list[Repair]()
    hidden = [at for at in table.chosen if table.table.names[at] == label_name]
    if not table.named:
        hidden = [at for at in table.chosen if is_same_target(table.table.names[at], label_name)]
    kept = [at for at in table.chosen if at not in hidden]
    for at in hidden:
        name = table.table.names[at]
        message = f"{path.name}: the column {name} has the name of the labels and is no feature"
        repairs.append(Repair("column-is-label", message, fields=(name,)))
    names = [table.table.names[column] for column in kept]
    odd = [name for name in names if is_no_feature(name, names)]
    if odd and not table.named:
        raise GraphError(
            f"{path}: the column {odd[0]} seems to hold ids or classes, which are no features; name the "
            "columns that are (--feature-columns)",
            code="feature-column-doubtful",
        )
    return FeatureSource(path, None, replace(table, chosen=kept), tuple(repairs))


def _feature_stage(work: Work, source: FeatureSource, progress: Progress) -> tuple[int | None, MomentSums]:
    """Write features and nodes; return how many values a sparse matrix stores (or None), and the moments."""
    if (done := work.state("features")) is not None:
        return done["stored"], MomentSums.from_dict(done["sums"])
    stored = None
    with work.transaction():
        if source.table is not None:
            sums = _write_dense(work.folder, _table_blocks(work, source.table, progress), source)
            _check_nodes(work, source.table)
        elif isinstance(source.values, Tensor):
            sums, stored = _write_sparse(work.folder, source.values)
        else:
            array: Any = source.values
            blocks = (array[start : start + BLOCK_ROWS] for start in range(0, len(array), BLOCK_ROWS))
            sums = _write_dense(work.folder, blocks, source)
        if source.table is None:
            work.run(f"CREATE TABLE nodes AS SELECT range AS id, range AS node FROM range({sums.rows})")
        work.store("features", {"stored": stored, "sums": sums.as_dict()})
    return stored, sums


def _write_sparse(folder: Path, matrix: Tensor) -> tuple[MomentSums, int]:
    sums = MomentSums(matrix.shape[1])
    sums.add(matrix)
    matrix.crow_indices().numpy().tofile(folder / mapped.FEATURE_CROW)
    matrix.col_indices().numpy().astype(index_type(matrix.shape[1])).tofile(folder / mapped.FEATURE_COLS)
    matrix.values().numpy().tofile(folder / mapped.FEATURE_VALUES)
    return sums, len(matrix.values())


def _write_dense(folder: Path, blocks: Iterator[npt.NDArray[Any]], source: FeatureSource) -> MomentSums:
    """Write blocks of rows as float32 and return their moments."""
    sums: MomentSums | None = None
    with (folder / "features.bin").open("wb") as file:
        for block in blocks:
            with np.errstate(over="ignore"):
                values = np.array(block, dtype=np.float32, order="C")  # a copy: files are read-only
            sums = MomentSums(values.shape[1]) if sums is None else sums
            if (bad := np.argwhere(~np.isfinite(values))).size:
                row, column = bad[0].tolist()
                where = source.place(sums.rows + row, column, values.shape[1])
                large = not np.isnan(block[row, column])
                kind = "infinite or beyond the range of float32" if large else "empty or NaN"
                message = (
                    f"{where}: the value is {kind}; fill the cell, or choose columns by --feature-columns"
                )
                raise GraphError(message, code="feature-not-finite")
            sums.add(torch.from_numpy(values))
            file.write(values.tobytes())
        os.fsync(file.fileno())
    assert sums is not None  # a file without rows is rejected
    return sums


def _table_blocks(
    work: Work, features: FeatureTable, progress: Progress
) -> Iterator[npt.NDArray[np.float64]]:
    """Yield blocks of features with equal numbers of rows, and write the table of nodes meanwhile."""
    wide = BLOCK_BYTES // (8 * len(features.chosen))
    rows = min(BLOCK_ROWS, 1 << max(8, wide.bit_length() - 1))
    rest: npt.NDArray[np.float64] | None = None
    for block in _read_features(work, features, progress):
        rest = block if rest is None else np.concatenate([rest, block])
        while len(rest) >= rows:
            yield rest[:rows]
            rest = rest[rows:]
    if rest is not None and len(rest):
        yield rest


def _read_features(
    work: Work, features: FeatureTable, progress: Progress
) -> Iterator[npt.NDArray[np.float64]]:
    import pyarrow as pa

    widths, total = dict[int, int](), features.table.count_blocks()
    for number, block in enumerate(features.table.load_blocks([features.key, *features.chosen]), 1):
        ids = _ids(block, features.key)
        kind = "BIGINT" if pa.types.is_integer(ids.type) else "VARCHAR"
        work.run(f"CREATE TABLE IF NOT EXISTS nodes (id {kind}, node BIGINT)")
        numbered = pa.record_batch({"id": ids, "node": np.arange(block.first, block.first + len(ids))})
        with work.table("numbered", numbered.schema, [numbered]):
            work.run("INSERT INTO nodes SELECT * FROM numbered")
        values = []
        for at in features.chosen:
            values.append(_features(block, at, widths.get(at)))
            widths[at] = values[-1].shape[1]
        yield np.concatenate(values, axis=1)
        progress("features", min(1.0, number / total))


def _ids(block: LoadedTable, at: int) -> Any:
    return arrow_ids(block.columns[at].chunk(0), f"{block.table.path}{block.table.title(at)}")


def _numbers(block: LoadedTable, at: int, remedy: str) -> npt.NDArray[np.float64]:
    values, unreadable = block.column_numbers(at)
    block.add_unreadable(at, unreadable, remedy)
    block.problems.check()
    return values


def _features(block: LoadedTable, at: int, width: int | None) -> npt.NDArray[np.float64]:
    """Return a column of numbers or of lists of this width as `[rows, values]`."""
    if block.table.delimiter is not None:
        return _numbers(block, at, FIX_NUMBER)[:, None]
    cells = block.columns[at].chunk(0)
    if (odd := odd_list(cells, width)) is not None:
        message = f"{block.place(odd, at)}: the list has another length than the first"
        raise GraphError(message, code="list-length-differs")
    return decode_numbers(cells, f"{block.table.path}{block.table.title(at)}")


def _first_problems(work: Work, query: str, problems: Problems) -> list[tuple[Any, ...]]:
    """Return the first rows of a query for problems; the others are only counted."""
    work.run(f"CREATE OR REPLACE TEMP TABLE problems AS {query}")
    problems.count += max(0, work.run("SELECT count(*) FROM problems")[0][0] - MOST_SHOWN)
    return work.run(f"SELECT * FROM problems LIMIT {MOST_SHOWN}")


def _check_nodes(work: Work, features: FeatureTable) -> None:
    """Reject missing and duplicate ids; store plain integers as such."""
    table, problems = features.table, Problems(features.table.path)
    missing = "SELECT node FROM nodes WHERE id IS NULL OR id::VARCHAR = '' ORDER BY node"
    for (row,) in _first_problems(work, missing, problems):
        problems.add(table.place(row, features.key), "the node id is missing", FIX_ID, "id-missing")
    problems.check()
    again = (
        "SELECT nodes.node, nodes.id, first FROM nodes JOIN (SELECT id, min(node) AS first FROM nodes "
        "GROUP BY id HAVING count(*) > 1) USING (id) WHERE nodes.node > first ORDER BY nodes.node"
    )
    for row, node, first in _first_problems(work, again, problems):
        what = f"node {_shown(node)} is already in {table.place(first)}"
        problems.add(table.place(row), what, FIX_DUPLICATE, "id-duplicate")
    problems.check()
    plain = f"SELECT bool_and({INTEGER.format('id')} IS NOT NULL) FROM nodes"
    if work.id_kind == "VARCHAR" and work.run(plain)[0][0]:
        work.run("ALTER TABLE nodes ALTER id TYPE BIGINT")


def _shown(node: Any) -> str:
    """Return an id for a message: text in quotation marks, a number without."""
    return str(node) if is_plain(str(node)) else quoted(node)


def _edge_stage(work: Work, links: LinkSource, known_by: Path, nodes: int, progress: Progress) -> None:
    """Write the table of edges by node numbers, one group of blocks after another."""
    edges = links.edges
    done = work.state("edges") or {"blocks": 0, "finished": False}
    if done["finished"]:
        return
    kind = "INTEGER" if index_type(nodes) == np.int32 else "BIGINT"
    columns = f"target {kind}, source {kind}, weight DOUBLE, row BIGINT{links.definitions}"
    work.run(f"CREATE TABLE IF NOT EXISTS edges ({columns})")
    fault = "source IS NULL OR target IS NULL"
    if edges.weight:
        fault += f" OR weight IS NULL OR NOT (weight > {WEIGHT_ABOVE!r} AND weight < {WEIGHT_BELOW!r})"
    reader, total = _EdgeReader(links, done["blocks"]), edges.table.count_blocks()
    while reader.upcoming is not None:
        before = reader.read
        with work.transaction():
            with work.table("block", reader.upcoming.schema, reader.group()):
                values, joined = links.selected, _joined(work, reader.upcoming.schema, links.selected)
                work.run(f"INSERT INTO edges SELECT target, source, weight, row{values} FROM ({joined})")
            _, bad = work.run(f"SELECT count(*), count(*) FILTER (WHERE {fault}) FROM edges")[0]
            if bad:
                _raise_edge_problems(work, edges, _EdgeReader(links, before), fault, known_by)
            work.store("edges", {"blocks": reader.read, "finished": reader.upcoming is None})
        progress("edges", min(1.0, reader.read / total))
    progress("edges", 1.0)


class _EdgeReader:
    """Reads a table of edges as Arrow batches, after the first `read` ones, in groups of `RANGE_ROWS`."""

    def __init__(self, links: LinkSource, read: int) -> None:
        self._links, self.read = links, read
        self._batches = itertools.islice(self._all(), read, None)
        self.upcoming = next(self._batches, None)

    def group(self) -> Iterator[Any]:
        """Yield the batches of one group."""
        rows = 0
        while self.upcoming is not None and rows < RANGE_ROWS:
            yield self.upcoming
            rows, self.read = rows + len(self.upcoming), self.read + 1
            self.upcoming = next(self._batches, None)

    def _all(self) -> Iterator[Any]:
        import pyarrow as pa

        edges = self._links.edges
        for block in edges.table.load_blocks((*edges.ends, *edges.weight, *self._links.positions)):
            source, target = (_ids(block, at) for at in edges.ends)
            weight = pa.nulls(len(source), pa.float64())
            for at in edges.weight:
                weight = pa.array(_numbers(block, at, FIX_COLUMN))
            rows = np.arange(block.first, block.first + len(source))
            batch = {"s": source, "t": target, "weight": weight, "row": rows}
            yield pa.record_batch(batch | self._links.arrays(block))


def _joined(work: Work, schema: Any, values: str = "") -> str:
    """Return the query that replaces the ids of a block by node numbers, NULL for unknown nodes."""
    import pyarrow as pa

    wanted = work.id_kind
    source, target = (
        _key(f"block.{end}", wanted, integer=pa.types.is_integer(schema.field(end).type)) for end in "st"
    )
    return (
        "SELECT targets.node AS target, sources.node AS source, weight, row, s::VARCHAR, t::VARCHAR"
        f"{values} FROM block LEFT JOIN nodes AS sources ON sources.id = {source} "
        f"LEFT JOIN nodes AS targets ON targets.id = {target}"
    )


def _key(id_: str, wanted: str, *, integer: bool) -> str:
    """Return the expression of an id as the type of the nodes' ids, NULL where it cannot be one."""
    if wanted == "VARCHAR":
        return f"{id_}::VARCHAR"
    return id_ if integer else INTEGER.format(id_)


def _raise_edge_problems(
    work: Work, edges: EdgeTable, reader: _EdgeReader, fault: str, known_by: Path
) -> None:
    """Read a group again, and raise with the rows that have no valid nodes or weight."""
    table, problems = edges.table, Problems(edges.table.path)
    assert reader.upcoming is not None
    schema = reader.upcoming.schema
    with work.table("block", schema, reader.group()):
        query = f"SELECT * FROM ({_joined(work, schema)}) WHERE {fault} ORDER BY row"
        rows = _first_problems(work, query, problems)
    for target, source, weight, row, *names in rows:
        for end, node, name in zip(edges.ends, (source, target), names, strict=True):
            hint = "if this row is a header, say so (--header); " if row == 0 and not table.header else ""
            if not name:
                problems.add(table.place(row, end), "the node id is missing", FIX_ID, "id-missing")
            elif node is None:
                unknown = f"node {_shown(name)} is unknown; it is not in {known_by}"
                problems.add(table.place(row), unknown, hint + FIX_UNKNOWN, "node-unknown")
        value = np.array([np.nan if weight is None else weight])
        if edges.weight and not valid_weights(value)[0]:
            what = f"the edge weight {value[0]:g} is not a positive number"
            problems.add(table.place(row), what, FIX_WEIGHT, "edge-weight-not-positive")
    problems.check()


def _sort_stage(work: Work, nodes: int, progress: Progress, *, weighted: bool) -> tuple[int, int]:
    """Write the edges as compressed sparse rows; return their number and that of merged duplicates."""
    total = work.run("SELECT count(*) FROM edges")[0][0]
    columns, order = ("target, source, weight", ", row") if weighted else ("target, source", "")

    def blocks() -> Iterator[Edges]:
        done = 0
        for batch in work.stream(f"SELECT {columns} FROM edges ORDER BY target, source{order}"):
            yield as_edges(batch)
            done += len(batch)
            progress("sorting", done / total)

    return write_rows(blocks(), work.folder, nodes, weighted=weighted)


def _write_ids(work: Work) -> None:
    """Write the ids as an Arrow file."""
    import pyarrow as pa

    schema = pa.schema([("node", pa.int64() if work.id_kind == "BIGINT" else pa.string())])
    with pa.OSFile(str(work.folder / mapped.IDS), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for batch in work.stream("SELECT id FROM nodes"):
            writer.write_batch(pa.record_batch([batch.column(0).cast(schema.field(0).type)], schema=schema))


def _write_labels(
    work: Work, table: LabelTable, nodes: int, known_by: Path, task: str
) -> tuple[dict[str, Any], list[Repair]]:
    """Write labels and splits, which are drawn if there are none; return their description and repairs."""
    labels = table.read(task=task)
    found = _find(work, labels.ids)
    if (found < 0).any():
        ids = [row[0] for row in work.run("SELECT id FROM nodes")]
        kind = np.int64 if work.id_kind == "BIGINT" else object
        table.check_known(labels.ids, np.array(ids, dtype=kind), known_by)
    known = labels.for_nodes(found, nodes)
    about: dict[str, Any] = {}
    masks, repairs, codes = known["masks"], [*labels.column.repairs], None
    if "targets" in known:
        known["targets"].tofile(work.folder / mapped.TARGETS)
        about["target_name"], codes = known["target_name"], stratify(torch.from_numpy(known["targets"]))
    elif known["labels"] is not None:
        known["labels"].astype(np.int32).tofile(work.folder / mapped.LABELS)
        about["class_names"], codes = list(known["class_names"]), torch.from_numpy(known["labels"])
    if masks is None and codes is not None and bool((codes >= 0).any()):
        draw = torch.Generator().manual_seed(SEED)
        masks = tuple(one.numpy() for one in random_splits(codes, generator=draw))
        repairs.append(random_splits_repair())
    if masks is not None:
        parts = np.full(masks[0].shape, -1, dtype=np.int8)
        for part, mask in enumerate(masks):
            parts[mask] = part
        parts.tofile(work.folder / mapped.SPLITS)
        about["splits"] = parts.shape[1]
    return about, repairs


def _find(work: Work, ids: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return the node of each id, -1 where there is none."""
    import pyarrow as pa

    found = np.full(len(ids), -1, dtype=np.int64)
    key = _key("wanted.id", work.id_kind, integer=ids.dtype.kind == "i")
    wanted = pa.record_batch({"id": pa.array(ids.tolist()), "position": np.arange(len(ids))})
    with work.table("wanted", wanted.schema, [wanted]):
        for batch in work.stream(f"SELECT position, node FROM wanted JOIN nodes ON nodes.id = {key}"):
            position, node = (column.to_numpy() for column in batch.columns)
            found[position] = node
    return found


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _hashes(folder: Path) -> dict[str, str]:
    """Return the hash of all content, and of what a model is trained on: all but labels and splits."""
    digest = hashlib.sha256()
    features = ("features.bin", mapped.FEATURE_CROW, mapped.FEATURE_COLS, mapped.FEATURE_VALUES)
    unlabelled = ""
    edges, known = ("crow.bin", "cols.bin", "weight.bin"), (mapped.LABELS, mapped.TARGETS, mapped.SPLITS)
    for name in (*features, *edges, mapped.LINKS, *known):
        if name == mapped.LABELS:
            unlabelled = digest.hexdigest()
        path = folder / name
        if path.is_file():
            digest.update(name.encode())
            with path.open("rb") as file:
                while piece := file.read(1 << 22):
                    digest.update(piece)
    return {"sha256": digest.hexdigest(), "unlabelled": unlabelled}
