"""Every reader of inputs, with damaged files and files of unusual content: a valid graph or an error."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st

from h3gnn import Graph
from h3gnn.experiments.report_columns import read_columns
from h3gnn.tables.files import check_parquet
from h3gnn.tables.read import read_graph
from tests.fuzz.hunting import Tally, examples, store
from tests.fuzz.mutations import byte_changes
from tests.graphs.test_reader_damage import SOUND, assert_trustworthy
from tests.storage.mixed import mixed_table

SHORT, LONG = 30, 2_000
CELLS = [
    "",
    "a",
    "b",
    "7",
    "-1",
    "1.5",
    "nan",
    "inf",
    "1e999",
    "9" * 30,
    "9" * 5000,
    "ü",
    '"',
    "=cmd|x",
    "train",
]
CELLS.append("\t")
NUMBERS = [0.0, 1.0, -1.0, 1e20, 1e300, float("nan"), float("inf")]
SIZES = [0, 1, 2, 3, 4, 5, 10**6, 10**12]
TYPES = ["<f4", "<f8", "<f2", "<i8", "<u8", "|b1", "<c16", "<U3", "|S3", "<M8[s]", "|V4"]
ARROW = [
    *(pa.int64(), pa.uint64(), pa.float32(), pa.string(), pa.large_string(), pa.binary(), pa.bool_()),
    *(pa.date32(), pa.timestamp("s"), pa.decimal128(5, 1), pa.list_(pa.int64()), pa.null()),
    *(pa.struct([("a", pa.int64())]), pa.dictionary(pa.int32(), pa.string()), pa.list_(pa.float32(), 2)),
]
VALUES = [None, 0, 1, 2**64 - 1, -1, 1.5, "a", "1", b"\xff", True, [1, 2], {"a": 1}]
ARRAYS = ["x", "edges", "node_features", "node_labels", "train_masks", "val_masks", "test_masks", "shape"]
TENSORS = ["x", "edge_index", "y", "edge_weight", "train_mask", "num_nodes"]


@st.composite
def odd_table(draw: st.DrawFn) -> bytes:
    mark = draw(st.sampled_from([",", "\t", ";", " ", "|"]))
    rows = draw(st.lists(st.lists(st.sampled_from(CELLS), min_size=1, max_size=4), min_size=1, max_size=6))
    head = draw(st.sampled_from(["", "id,f0\n", "source,target\n", "source,target,weight\n"]))
    return (head + "\n".join(mark.join(row) for row in rows)).encode()


@st.composite
def odd_parquet(draw: st.DrawFn) -> bytes:
    rows = draw(st.integers(0, 4))
    columns = {}
    for name in draw(st.lists(st.sampled_from(["source", "target", "weight", "id", "f0", ""]), unique=True)):
        kind = draw(st.sampled_from(ARROW))
        given_ = draw(st.sampled_from(VALUES))
        try:
            columns[name] = pa.array([given_] * rows, type=kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            columns[name] = pa.array([None] * rows, type=kind)
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


def odd_arrays() -> st.SearchStrategy[Any]:
    def make(kind: str, shape: list[int], number: float) -> Any:
        values = np.zeros([min(size, 6) for size in shape], dtype=kind)
        if np.dtype(kind).kind in "fc":
            with np.errstate(all="ignore"):
                values.fill(number)
        return values

    shapes = st.lists(st.sampled_from(SIZES), min_size=0, max_size=3)
    return st.builds(make, st.sampled_from(TYPES), shapes, st.sampled_from(NUMBERS))


@st.composite
def odd_npy(draw: st.DrawFn) -> bytes:
    """Return an array, or a header that declares more than follows it."""
    buffer = io.BytesIO()
    if draw(st.booleans()):
        np.save(buffer, draw(odd_arrays()))
        return buffer.getvalue()
    shape = tuple(draw(st.lists(st.sampled_from(SIZES), max_size=3)))
    header = {"descr": draw(st.sampled_from(TYPES)), "fortran_order": draw(st.booleans()), "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, header)
    return buffer.getvalue() + b"\0" * draw(st.sampled_from([0, 8, 64]))


@st.composite
def odd_npz(draw: st.DrawFn) -> bytes:
    buffer = io.BytesIO()
    if draw(st.booleans()):
        chosen = draw(st.lists(st.sampled_from(ARRAYS), min_size=1, unique=True))
        np.savez(buffer, **{name: draw(odd_arrays()) for name in chosen})
        return buffer.getvalue()
    shape = (draw(st.sampled_from(SIZES[1:])), draw(st.sampled_from([*SIZES[1:], 10**8])))
    entries = draw(st.integers(0, 3))
    at = (np.arange(entries) % shape[0], np.arange(entries) % shape[1])
    matrix = sp.coo_matrix((np.full(entries, draw(st.sampled_from(NUMBERS))), at), shape=shape)
    small = shape[0] < 10**7 and shape[1] < 10**7
    sp.save_npz(buffer, matrix.asformat(draw(st.sampled_from(["csr", "csc", "coo"] if small else ["coo"]))))
    return buffer.getvalue()


@st.composite
def odd_pt(draw: st.DrawFn) -> bytes:
    parts: dict[str, Any] = {}
    for name in draw(st.lists(st.sampled_from(TENSORS), unique=True)):
        kind = draw(st.sampled_from([torch.int64, torch.float32, torch.bool, torch.bfloat16, torch.uint8]))
        shape = draw(st.lists(st.sampled_from(SIZES), max_size=3))
        if name == "num_nodes":
            parts[name] = draw(st.sampled_from([0, 3, -1, 10**12, 10**400, "4", None]))
        else:
            one = torch.full((1,) * len(shape), draw(st.sampled_from([0, 1, 2])), dtype=kind)
            declared = [size if sum(map(bool, shape)) else 0 for size in shape]
            parts[name] = (
                one.expand(declared) if math.prod(max(1, size) for size in declared) < 10**18 else one
            )
    buffer = io.BytesIO()
    torch.save(draw(st.sampled_from([parts, (parts, None), [parts], list(parts.values())])), buffer)
    return buffer.getvalue()


@st.composite
def odd_graphml(draw: st.DrawFn) -> bytes:
    name = draw(st.sampled_from(["x", "x0", "y", "split", "weight", "x" + "1" * 5000, "<b>"]))
    kind = draw(st.sampled_from(["double", "long", "int", "string", "boolean", "nonsense"]))
    values = [draw(st.sampled_from([*CELLS, "1 2", "[1]", "true"])) for _ in range(3)]
    escape = {"&": "&amp;", "<": "&lt;", '"': "&quot;"}
    name, *values = ["".join(escape.get(one, one) for one in text) for text in (name, *values)]
    nodes = "".join(f'<node id="n{i}"><data key="d">{value}</data></node>' for i, value in enumerate(values))
    ends = draw(st.sampled_from(["n0", "n1", "n9", ""]))
    return (
        f'<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><key id="d" for="node" attr.name="{name}" '
        f'attr.type="{kind}"/><graph edgedefault="undirected">{nodes}<edge source="n0" target="{ends}"/>'
        "</graph></graphml>"
    ).encode()


@st.composite
def odd_gml(draw: st.DrawFn) -> bytes:
    words = ["0", "1", "-1", "9" * 30, "9" * 5000, '"a"', "1.5", "1e999", "NAN", "[ a 1 ]", ""]
    key = draw(st.sampled_from(["x", "x0", "y", "label", "split", "weight", "id"]))
    nodes = "".join(f"node [ id {i} {key} {draw(st.sampled_from(words))} ]\n" for i in range(3))
    weight = draw(st.sampled_from(words))
    return f"graph [\n{nodes}edge [ source 0 target 1 weight {weight} ]\n]".encode()


ODD: dict[str, Callable[[], st.SearchStrategy[bytes]]] = {
    **{".csv": odd_table, ".parquet": odd_parquet, ".npy": odd_npy, ".npz": odd_npz},
    **{".pt": odd_pt, ".graphml": odd_graphml, ".gml": odd_gml},
}
TSV_EDGES = b"source\ttarget\tweight\nann\tbob\t1\nbob\tcid\t2.5\n"


def read_mixed(path: Path) -> Any:
    edges = path.with_name("e.csv")
    edges.write_text("source,target\nn1,n2\nn2,n3\n")
    return read_graph(edges, features=path)


def read_own_columns(path: Path) -> Any:
    return read_columns(path, np.array(["n1", "n2", "n3"], dtype=object))


def mixed_csv() -> bytes:
    return (
        b"account,opened,kind,balance,tags,note\nn1,2020-01-02,red,1.5,a|b,a long text of words\n"
        b"n2,2021-02-03,red,,b,another long text of words\n"
        b"n3,2022-03-04,blue,7,a|c|b,the third text of words\nn4,,blue,9,a,words again and a text"
    )


def mixed_parquet() -> bytes:
    buffer = io.BytesIO()
    table = mixed_table()
    table.insert(0, "id", [f"n{row}" for row in range(len(table))])
    table.to_parquet(buffer)
    return buffer.getvalue()


MIXED: dict[str, tuple[str, Callable[[], bytes], Callable[[Path], Any]]] = {
    "mixed csv": ("m.csv", mixed_csv, read_mixed),
    "mixed parquet": ("m.parquet", mixed_parquet, read_mixed),
    "own columns csv": ("m.csv", mixed_csv, read_own_columns),
    "own columns parquet": ("m.parquet", mixed_parquet, read_own_columns),
}
"""Tables of columns of any kind: features that are encoded, and what a page shows."""
KINDS = [*SOUND, "tsv edges", *MIXED]


def hunt(kind: str, folder: Path, count: int) -> Tally:
    name, content, read = SOUND["lone csv edges"] if kind == "tsv edges" else {**SOUND, **MIXED}[kind]
    path = folder / (name.replace(".csv", ".tsv") if kind == "tsv edges" else name)
    sound, tally = TSV_EDGES if kind == "tsv edges" else content(), Tally(kind)
    odd = ODD[path.suffix.replace(".tsv", ".csv")]()

    @examples(count)
    @given(data=st.data())
    def attempts(data: st.DataObject) -> None:
        path.write_bytes(data.draw(odd) if data.draw(st.booleans()) else data.draw(byte_changes())(sound))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tally.attempt(lambda: assert_trustworthy_if_small(read(path)))

    attempts()
    return tally


def assert_trustworthy_if_small(graph: Any) -> None:
    if isinstance(graph, Graph) and graph.num_nodes * graph.num_features < 10**7:
        assert_trustworthy(graph)


@pytest.mark.parametrize("kind", KINDS)
def test_an_unusual_file_is_a_graph_or_an_error(kind: str, tmp_path: Path) -> None:
    ended = hunt(kind, tmp_path, SHORT).ended
    assert ended["rejected"]
    assert ended["failures"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_unusual_files_are_graphs_or_errors(kind: str, tmp_path: Path) -> None:
    tally = hunt(kind, tmp_path, LONG)
    store(kind, tally.ended)
    assert tally.ended["failures"] == 0


def test_a_cell_of_a_million_characters_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "e.csv"
    pd.DataFrame({"source": ["a" * 10**6, "b"], "target": ["b", "c"]}).to_csv(path, index=False)
    tally = Tally("a long cell")
    tally.attempt(lambda: SOUND["lone csv edges"][2](path))
    assert tally.ended["rejected"] == 1


def test_the_metadata_of_parquet_columns_are_not_read(tmp_path: Path) -> None:
    """Where they are damaged (histograms of another size, say), pyarrow ends the whole process."""
    group = SimpleNamespace(total_byte_size=-1)
    metadata = SimpleNamespace(num_row_groups=1, num_rows=1, row_group=lambda number: group)
    check_parquet(tmp_path / "m.parquet", SimpleNamespace(metadata=metadata), [0])
