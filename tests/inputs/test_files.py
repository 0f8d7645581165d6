"""Files as programs write them: encodings, delimiters, quotes, comments, spaces and names of columns."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from h3gnn import Graph, read_graph
from h3gnn.errors import InputError
from tests.inputs.tables import column_values, ring
from tests.rejects import rejects

ROWS = [("a", "1.5", "Köln"), ("b", "2.5", "Ulm"), ("c", "4", "Köln"), ("d", "8", "Ulm")]
TEXT = "id,size,town\n" + "".join(",".join(row) + "\n" for row in ROWS)


def read_bytes(folder: Path, content: bytes, name: str = "f.csv", **options: object) -> Graph:
    """Return the graph of a ring of four nodes with these features."""
    (folder / name).write_bytes(content)
    edges = ring(["a", "b", "c", "d"])
    return read_graph(edges, features=folder / name, **options)  # type: ignore[arg-type]


def names(graph: Graph) -> list[str]:
    assert graph.plan is not None
    return [one.name for one in graph.plan.columns]


def is_read(graph: Graph) -> bool:
    """Whether the table was read with its values, ids and names."""
    right = column_values(graph, "size") == pytest.approx([1.5, 2.5, 4, 8])
    return right and graph.node_ids.tolist() == [*"abcd"] and names(graph) == ["size", "town"]


@pytest.mark.parametrize(
    "content",
    [
        TEXT.encode(),
        TEXT.encode("utf-8-sig"),
        TEXT.replace("\n", "\r\n").encode(),
        TEXT.replace("\n", "\r").encode(),
        TEXT.rstrip("\n").encode(),
        TEXT.replace("\n", "\n\n").encode(),
        ("# made by hand\n\n#\n" + TEXT).encode(),
        TEXT.replace(",", ";").encode(),
        TEXT.replace(",", "\t").encode(),
        TEXT.replace(",", "|").encode(),
        TEXT.replace(",", " , ").encode(),
        TEXT.replace("Köln", '"Köln"').replace("size", '"size"').encode(),
        TEXT.replace(",", ";").replace(".", ",").encode(),
    ],
)
def test_ways_of_writing_one_table(tmp_path: Path, content: bytes) -> None:
    assert is_read(read_bytes(tmp_path, content))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("f.txt", TEXT.replace(",", " ")),
        ("f.tsv", TEXT.replace(",", "\t")),
        ("f.tab", TEXT.replace(",", "\t")),
        ("f.TXT", TEXT),
    ],
)
def test_suffixes_of_text_files(tmp_path: Path, name: str, content: str) -> None:
    assert is_read(read_bytes(tmp_path, content.encode(), name))


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "utf-32", "cp1252", "cp437"])
def test_other_encodings_are_rejected(tmp_path: Path, encoding: str) -> None:
    with rejects("text-invalid"):
        read_bytes(tmp_path, TEXT.encode(encoding))


@pytest.mark.parametrize("name", ["f.xlsx", "f.json", "f.csv.gz", "f", "f.dat"])
def test_other_suffixes_are_rejected(tmp_path: Path, name: str) -> None:
    with rejects("file-suffix-unknown"):
        read_bytes(tmp_path, TEXT.encode(), name)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (TEXT + "e,3\n", "row-length-differs"),
        (TEXT + "e,3,Aix, Marseille\n", "row-length-differs"),
        (TEXT + 'e,3,"two\nlines"\n', "text-invalid"),
        (TEXT + 'e,3,"open\n', "text-invalid"),
        (TEXT + "e,3,a\0b\n", "text-invalid"),
        ("id,size,town\n", "table-empty"),
        ("", "file-empty"),
        ("\n\n", "table-empty"),
    ],
)
def test_rows_that_do_not_fit_are_rejected(tmp_path: Path, content: str, code: str) -> None:
    with rejects(code):
        read_bytes(tmp_path, content.encode())


def test_a_quoted_cell_may_contain_the_delimiter_and_quotes(tmp_path: Path) -> None:
    text = 'id,size,town\na,1.5,"Aix, Marseille"\nb,2.5,"The ""Hill"""\nc,4,"Aix, Marseille"\nd,8,Ulm\n'
    plan = read_bytes(tmp_path, text.encode()).plan
    assert plan is not None
    assert {*plan.names} == {"size", "town=Aix, Marseille", 'town=The "Hill"', "town=Ulm"}


def test_spaces_around_cells_and_names_do_not_count(tmp_path: Path) -> None:
    text = " id , size , town \n" + "".join(f" {a} ,  {b} , {c}\n" for a, b, c in ROWS)
    assert is_read(read_bytes(tmp_path, text.encode()))


def test_without_header_columns_have_numbers(tmp_path: Path) -> None:
    graph = read_bytes(tmp_path, b"a,1.5,x\nb,2.5,x\nc,4,y\nd,8,x\n")
    assert names(graph) == ["column 2", "column 3"]
    again = read_bytes(tmp_path, b"a,1.5,x\nb,2.5,x\nc,4,y\nd,8,x\n", columns={"column 2": "category"})
    assert again.plan is not None
    assert again.plan.columns[0].kind == "category"


def test_columns_of_one_name_are_told_apart_by_position(tmp_path: Path) -> None:
    assert names(read_bytes(tmp_path, b"id,x,x\na,1,2\nb,2,4\nc,3,9\nd,5,7\n")) == [
        "x (column 2)",
        "x (column 3)",
    ]
    frame = pd.DataFrame([["a", 1, 2], ["b", 2, 4]], columns=["id", "x", "x"])
    with rejects("column-duplicate", InputError):
        read_graph(ring(["a", "b"]), features=frame)


def test_columns_are_found_by_name_in_any_order(tmp_path: Path) -> None:
    graph = read_bytes(tmp_path, TEXT.encode())
    turned = "town,id,more,size\n" + "".join(f"{c},{a},?,{b}\n" for a, b, c in ROWS)
    again = read_bytes(tmp_path, turned.encode(), "g.csv", plan=graph.plan)
    assert again.dense_features().tolist() == graph.dense_features().tolist()
    with rejects("column-missing"):
        read_bytes(tmp_path, TEXT.replace("size", "Size").encode(), "h.csv", plan=graph.plan)


@pytest.mark.parametrize(
    ("header", "key"),
    [
        ("id,other_id,x", 0),
        ("x,node,y", 1),
        ("x,account_id,y", 1),
        ("kind_id,account_id,x", 1),
        ("x,name,y", 1),
        ("who,x,y", 0),
    ],
)
def test_the_column_of_ids_is_found_by_its_name(tmp_path: Path, header: str, key: int) -> None:
    rows = [[str(row % 2), str(row % 2), f"{row}.5"] for row in range(4)]
    for row, node in zip(rows, "abcd", strict=True):
        row[key] = node
    text = "\n".join([header, *(",".join(row) for row in rows)])
    assert read_bytes(tmp_path, text.encode()).node_ids.tolist() == [*"abcd"]
