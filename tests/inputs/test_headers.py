"""Headers: found where names are certain, asked about where only words suggest one, never a lost row."""

from __future__ import annotations

from pathlib import Path

import pytest

from h3gnn import read_graph
from h3gnn.errors import InputError
from h3gnn.ondisk.prepare import prepare_graph
from h3gnn.tables.reader import open_table

ASKS = "header-ambiguous"
NAMES = "ann,bob\nbob,cid\ncid,ann\n"
EDGES = "source,target\na,b\nb,c\n"


def nodes(folder: Path, edges: str, features: str | None = None) -> list[str] | str:
    """Return the node ids, or the code of the error."""
    (folder / "e.csv").write_text(edges)
    if features is not None:
        (folder / "f.csv").write_text(features)
    try:
        graph = read_graph(folder / "e.csv", features=None if features is None else folder / "f.csv")
    except InputError as error:
        return error.code
    return [str(one) for one in graph.node_ids]


def has_header(folder: Path, text: str, role: str) -> bool | str:
    """Return whether the reader finds a header, or the code of the error."""
    (folder / "t.csv").write_text(text)
    try:
        return open_table(folder / "t.csv", role=role).header
    except InputError as error:
        return error.code


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("source,target\na,b\nb,c\n", "abc"),
        ("src,dst\na,b\nb,c\n", "abc"),
        ("from,to\na,b\nb,c\n", "abc"),
        ("sender,receiver\na,b\nb,c\n", "abc"),
        ("from_account,to_account\na,b\nb,c\n", "abc"),
        ("parentCompany,childCompany\na,b\nb,c\n", "abc"),
        ("from_id,to_id\n1,2\n2,3\n", "123"),
        ("Source,Target,Weight\na,b,1\nb,c,2\n", "abc"),
        ("a,b\nb,c\nc,d\n", "abcd"),
        ("1,2\n2,3\n3,4\n", "1234"),
        ("u,v\nv,w\nw,u\n", "uvw"),
        ("source,target\n1,2\n2,3\n", "123"),
        ("person,friend\n1,2\n2,3\n", "123"),
        ("u,v\n1,2\n2,3\n", "123"),
        ("head,tail\n1,2\n2,3\n", "123"),
        ("id,node\n1,2\n2,3\n", "123"),
        ("x,y,amount\na,b,$5\nb,c,$6\n", "abc"),
        ("x,y,day\na,b,31.12.2024\nb,c,30.12.2024\n", "abc"),
    ],
)
def test_a_certain_header_is_found(tmp_path: Path, text: str, expected: str) -> None:
    assert nodes(tmp_path, text) == [*expected]


@pytest.mark.parametrize(
    "text",
    [
        f"person,friend\n{NAMES}",
        f"left,right\n{NAMES}",
        f"start,end\n{NAMES}",
        f"head,tail\n{NAMES}",
        f"u,v\n{NAMES}",
        f"node1,node2\n{NAMES}",
        f"buyer,seller\n{NAMES}",
        f"parent,child\n{NAMES}",
        "Origin,Destination\nParis,Rome\nRome,Oslo\n",
        "x,y\na,b\nb,c\n",
        "from,to\nthe,of\nof,from\n",  # the edges of words in a text
        "source,target\na,b\nsource,target\nb,c\n",  # two files in one
        "source,target,5\na,b,3\nb,c,4\n",
        "0,1,2\n5,7,1.5\n7,9,2.5\n9,5,1\n",  # pandas without names, or an edge of weight 2
    ],
)
def test_words_above_words_are_a_question(tmp_path: Path, text: str) -> None:
    assert nodes(tmp_path, text) == ASKS


def test_ids_that_look_like_names_of_columns_are_nodes(tmp_path: Path) -> None:
    assert nodes(tmp_path, "node1,node2\nnode2,node3\nnode3,node1\n") == ["node1", "node2", "node3"]
    assert nodes(tmp_path, "head,tail\ntail,body\nbody,head\n") == ["body", "head", "tail"]


def test_a_word_for_a_missing_value_is_no_name_of_a_column(tmp_path: Path) -> None:
    rows = "".join(f"w{i},w{i + 1}\n" for i in range(40))
    assert has_header(tmp_path, f"nan,N/A\n{rows}NA,w3\n", "edges") is False


def test_ids_of_another_form_than_the_first_row_show_a_header(tmp_path: Path) -> None:
    rows = "".join(f"C{i % 5:03},S{i % 7:03}\n" for i in range(20))
    found = nodes(tmp_path, f"buyer,seller\n{rows}")
    assert "buyer" not in found
    assert len(found) == 12
    assert has_header(tmp_path, "buyer,seller\nC001,S002\nC002,S001\n", "edges") is False  # two rows: asked
    assert nodes(tmp_path, "buyer,seller\nC001,S002\nC002,S001\n") == ASKS


@pytest.mark.parametrize("header", [True, False])
def test_the_answer_is_an_option(tmp_path: Path, header: bool) -> None:
    (tmp_path / "e.csv").write_text(f"person,friend\n{NAMES}")
    assert read_graph(tmp_path / "e.csv", header=header).num_nodes == (3 if header else 5)


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        ("id,age,city\na,30,Rome\nb,40,Oslo\nc,50,Rome\n", "abc"),
        ("node,age\na,30\nb,40\nc,50\n", "abc"),
        ("account_id,age\na,30\nb,40\nc,50\n", "abc"),
        ("name,age\na,30\nb,40\nc,50\n", "abc"),
        ("name,city\na,Rome\nb,Oslo\nc,Rome\n", "abc"),
        ("a,30\nb,40\nc,50\n", "abc"),
        ("a,30,Rome\nb,40,Oslo\nc,50,Rome\n", "abc"),
        ("a,NA\nb,40\nc,50\n", "abc"),
        ("a,?\nb,40\nc,50\n", "abc"),
        ("a,$30\nb,$40\nc,$50\n", "abc"),
        ("a,1/12/2024\nb,30/12/2024\nc,15/12/2024\n", "abc"),
        ("who,age\na,30\nb,40\nc,50\n", "abc"),
        ("who,price\na,$30\nb,$40\nc,$50\n", "abc"),
        ("id,2019,2020\na,1.5,2\nb,2.5,3\nc,3.5,4\n", "abc"),
        (",age\na,30\nb,40\nc,50\n", "abc"),
        ("who,city\na,Rome\nb,Oslo\nc,Rome\n", ASKS),
        ("country,2019,2020\na,1.5,2\nb,2.5,3\nc,3.5,4\n", ASKS),
        ("node,30\nedge,40\nface,50\n", ASKS),
        ("id,30\na,40\nid,50\n", ASKS),
    ],
)
def test_headers_of_features(tmp_path: Path, features: str, expected: str) -> None:
    assert nodes(tmp_path, EDGES, features) == (expected if expected == ASKS else [*expected])


@pytest.mark.parametrize(
    ("text", "role", "expected"),
    [
        ("a,Paris\n" + "b,Rome\nc,Oslo\n" * 8, "features", False),  # a rare city is no name
        ("lock,key\ndoor,wood\n", "features", False),
        ("key,metal\nlock,metal\n", "features", False),
        (",30\nb,40\nc,50\n", "features", False),
        ("n0,Paris\n" + "".join(f"n{i},Rome\n" for i in range(1, 400)), "features", False),
        (
            "person,town\n" + "".join(f"p{i},{'Ulm' if i % 2 else 'Bonn'}\n" for i in range(12)),
            "features",
            True,
        ),
        ("id,label\na,x\nb,y\n", "labels", True),
        ("node,class\na,x\nb,y\n", "labels", True),
        ("account_id,is_fraud\na,yes\nb,no\n", "labels", True),
        ("id,split\na,train\nb,test\n", "labels", True),
        ("a,x\nb,y\n", "labels", False),
        ("215,+1\n300,-1\n", "labels", False),
        ("user_id,film_id\nu1,f2\nu2,f3\n", "edges", True),
        ("date,source,target\nmonday,a,b\nfriday,b,c\n", "edges", True),
    ],
)
def test_what_the_reader_takes_for_a_header(
    tmp_path: Path, text: str, role: str, expected: bool | str
) -> None:
    assert has_header(tmp_path, text, role) == expected


@pytest.mark.parametrize("header", ["who,city", "country,2019"])
def test_prepare_asks_or_rejects_too(tmp_path: Path, header: str) -> None:
    (tmp_path / "e.csv").write_text(f"person,friend\n{NAMES}")
    (tmp_path / "f.csv").write_text("id,x\nann,1\nbob,2\ncid,4\n")
    with pytest.raises(InputError) as error:
        prepare_graph(tmp_path / "e.csv", tmp_path / "f.csv", tmp_path / "out")
    assert error.value.code in (ASKS, "node-unknown")
