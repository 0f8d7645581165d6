"""Edge tables: ends found by column names, rules for invalid edges, all problems in one error."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from h3gnn.graphs.profile import profile
from h3gnn.tables.read import read_graph
from tests.rejects import rejects
from tests.tables.written import named_edges, repairs, weights, write

FEATURES = "account_id,balance\na,1\nb,2\nc,3\n"


@pytest.mark.parametrize(
    "header",
    [
        "tx_id,from_account,to_account",
        "tx_id,fromAccount,toAccount",
        "tx_id,sender_id,receiver_id",
        "amount,nameOrig,nameDest",
        "when,account_1,account_2",
        "when,id1,id2",
        "tx_id,buyer_account_id,seller_account_id",
        "transaction_id,account_id,shop_id",
        "x,from,to",
    ],
)
def test_the_ends_are_found_by_their_names(tmp_path: Path, header: str) -> None:
    rows = "".join(f"{900 + row},n{row % 4},n{(row + 1) % 4}\n" for row in range(20))
    graph = read_graph(write(tmp_path, edges=f"{header}\n{rows}")["edges"], bipartite=False)
    assert named_edges(graph) == {("n0", "n1"), ("n1", "n2"), ("n2", "n3"), ("n3", "n0")}


def test_columns_that_would_make_every_row_a_node_are_rejected(tmp_path: Path) -> None:
    rows = "".join(f"{900 + row},n{row % 4},n{(row + 1) % 4}\n" for row in range(20))
    path = write(tmp_path, edges=f"number,here,there\n{rows}")["edges"]
    with rejects("edge-columns-ambiguous"):
        read_graph(path)
    assert read_graph(path, source_column="here", target_column="there").num_nodes == 4
    pairs = "".join(f"{row},p{row}\n" for row in range(20))
    with rejects("edge-columns-ambiguous"):
        read_graph(write(tmp_path, edges=f"what,who\n{pairs}")["edges"])
    tree = "".join(f"{row},{row // 2}\n" for row in range(1, 30))
    assert read_graph(write(tmp_path, edges=f"what,who\n{tree}")["edges"]).num_nodes == 30


def test_two_pairs_of_ends_are_rejected(tmp_path: Path) -> None:
    path = write(tmp_path, edges="from_bank,from_iban,to_bank,to_iban\nx,a,y,b\nx,b,y,a\n")["edges"]
    with rejects("edge-columns-ambiguous"):
        read_graph(path)
    path = write(tmp_path, edges="from_account,to_account,from_date,to_date\na,b,1,2\nb,a,1,2\n")["edges"]
    assert named_edges(read_graph(path)) == {("a", "b"), ("b", "a")}


def test_an_id_column_has_priority_over_the_index_of_pandas(tmp_path: Path) -> None:
    edges = write(tmp_path, edges="source,target\n70,80\n80,90\n")["edges"]
    frame = pd.DataFrame({"account_id": [70, 80, 90], "age": [1.0, 2.0, 4.0]}, index=[2, 0, 1])
    frame.to_parquet(tmp_path / "f.parquet")
    graph = read_graph(edges, features=tmp_path / "f.parquet")
    assert graph.node_ids.tolist() == [70, 80, 90]
    assert graph.features.tolist() == [[1], [2], [4]]
    assert ("column-unused", ("__index_level_0__",)) in [(r.code, r.fields) for r in graph.provenance.repairs]


def test_of_several_id_columns_the_unique_one_is_used(tmp_path: Path) -> None:
    features = "branch_id,account_id,f\n1,a,5\n1,b,6\n2,c,8\n"
    graph = read_graph(**write(tmp_path, edges="source,target\na,b\nb,c\n", features=features))
    assert graph.node_ids.tolist() == ["a", "b", "c"]


def test_a_header_of_unusual_names_is_recognised(tmp_path: Path) -> None:
    edges, labels = "from_account,to_account\na,b\nb,c\n", "account_id,is_fraud\na,yes\nb,no\nc,\n"
    graph = read_graph(**write(tmp_path, edges=edges, labels=labels))
    assert graph.node_ids.tolist() == ["a", "b", "c"]
    assert graph.class_names == ("no", "yes")
    towns = "person,town\n" + "".join(f"p{row},{'Ulm' if row % 2 else 'Bonn'}\n" for row in range(12))
    graph = read_graph(**write(tmp_path, edges="source,target\np0,p1\n", features=towns))
    assert graph.node_ids.tolist()[:2] == ["p0", "p1"]
    with rejects("header-ambiguous"):
        read_graph(**write(tmp_path, edges="source,target\na,b\n", features="who,what\na,x y z\nb,z y x\n"))


def test_labels_of_a_data_frame_with_gaps_and_booleans(tmp_path: Path) -> None:
    edges = write(tmp_path, edges="0,1\n1,2\n")["edges"]
    for cells in ([1.0, None, 0.0], [True, None, False]):
        pd.DataFrame({"account_id": [0, 1, 2], "is_fraud": cells}).to_parquet(tmp_path / "y.parquet")
        graph = read_graph(edges, labels=tmp_path / "y.parquet")
        assert graph.labels is not None
        assert graph.labels.tolist() == [1, -1, 0]


def test_unknown_nodes_are_errors_dropped_or_added(tmp_path: Path) -> None:
    edges = "from_id,to_id\na,b\nb,zoe\nzoe,yan\nb,c\n"
    paths = write(tmp_path, edges=edges, features=FEATURES, labels="id,label\na,x\nzoe,y\n")
    with rejects("node-unknown") as caught:
        read_graph(**paths)
    for part in ("3 problems", "line 3: node 'zoe' is unknown", "--unknown-nodes drop"):
        assert part in caught.message
    graph = read_graph(**paths, unknown_nodes="drop")
    assert named_edges(graph) == {("a", "b"), ("b", "c")}
    assert repairs(graph)["edges-of-unknown-nodes"] == 2
    assert repairs(graph)["labels-of-unknown-nodes"] == 1
    graph = read_graph(**paths, unknown_nodes="add")
    assert graph.node_ids.tolist() == ["a", "b", "c", "yan", "zoe"]
    assert graph.num_edges == 4
    assert graph.plan is not None
    missing = graph.features[:, graph.plan.names.index("balance is missing")]
    assert missing.tolist() == [0, 0, 0, 1, 1]
    assert graph.labels is not None
    assert graph.labels.tolist() == [0, -1, -1, -1, 1]
    np.save(tmp_path / "f.npy", np.ones((1, 2)))
    numbers = write(tmp_path, numbers="0,1\n")["numbers"]
    with rejects("array-not-combinable"):
        read_graph(numbers, features=tmp_path / "f.npy", unknown_nodes="add")


def test_invalid_weights_are_errors_dropped_or_made_positive(tmp_path: Path) -> None:
    text = "source,target,weight\na,b,-2\nb,c,0\nc,a,\nb,a,5\n"
    path = write(tmp_path, edges=text)["edges"]
    with rejects("edge-weight-not-positive") as caught:
        read_graph(path, weight_column="weight")
    assert [f"weight {one} is not" in caught.message for one in (-2, 0, "nan", 5)] == [
        True,
        True,
        True,
        False,
    ]
    graph = read_graph(path, weights="drop")
    assert weights(graph) == {("b", "a"): 5}
    assert repairs(graph)["weights-not-positive"] == 3
    graph = read_graph(path, weights="absolute")
    assert weights(graph) == {("a", "b"): 2, ("b", "a"): 5}
    assert repairs(graph)["absolute-weights"] == 1
    with rejects("value-invalid"):
        read_graph(path, weights="ignore")


@pytest.mark.parametrize(
    ("how", "expected"),
    [("sum", 7), ("count", 3), ("mean", 7 / 3), ("max", 4), ("first", 1), ("last", 2)],
)
def test_repeated_edges_are_merged_by_the_chosen_rule(tmp_path: Path, how: str, expected: float) -> None:
    path = write(tmp_path, edges="source,target,weight\na,b,1\nb,c,9\na,b,4\na,b,2\n")["edges"]
    graph = read_graph(path, repeated=how)
    found = weights(graph)
    assert found[("a", "b")] == pytest.approx(expected)
    assert found[("b", "c")] == (1 if how == "count" else 9)
    assert repairs(graph)["repeated-edges"] == 2


def test_repeated_edges_without_weights_are_counted_or_rejected(tmp_path: Path) -> None:
    path = write(tmp_path, edges="source,target\na,b\nb,c\na,b\n")["edges"]
    graph = read_graph(path)
    assert graph.edge_weight is None
    assert repairs(graph)["repeated-edges"] == 1
    assert weights(read_graph(path, repeated="count")) == {("a", "b"): 2, ("b", "c"): 1}
    both = read_graph(path, repeated="count", undirected=True)
    assert weights(both)[("b", "a")] == 2
    with rejects("edges-duplicate"):
        read_graph(path, repeated="error")


PROBLEMS = {
    "edges": [
        "line 3: 2 cell(s), the first row has 3",
        "line 4, column 1 (source): the node id is missing",
        "line 5: node 'zoe' is unknown",
        "line 6, column 3 (weight): 'heavy' is not a number",
        "line 7: the edge weight 0 is not a positive number",
    ],
    "features": [
        "line 3: 2 cell(s)",
        "line 4, column 1 (account_id): the node id is missing",
        "line 5, column 2 (balance): 'x' is not a number",
        "line 6, column 3 (opened): 'soon' is not a date",
    ],
    "labels": [
        "line 3: node 'a' is already in",
        "line 4: 1 cell(s)",
        "line 5, column 3 (split): 'maybe' is not one of",
    ],
}


@pytest.mark.parametrize("table", PROBLEMS)
def test_all_problems_of_a_file_are_listed_at_once(tmp_path: Path, table: str) -> None:
    texts = {"edges": "source,target\na,b\n", "features": FEATURES}
    texts[table] = {
        "edges": "source,target,weight\na,b,1\na,b\n,b,1\na,zoe,1\na,c,heavy\na,b,0\n",
        "features": "account_id,balance,opened\na,1,2020-01-01\nb,2\n,3,2020-01-01\n"
        "c,x,2020-01-01\nd,4,soon\ne,5,2020-01-02\n",
        "labels": "id,label,split\na,x,train\na,y,test\nzoe\nb,x,maybe\n",
    }[table]
    with rejects("several-problems") as caught:
        read_graph(**write(tmp_path, **texts))
    assert f"{len(PROBLEMS[table])} problems" in caught.message
    for part in PROBLEMS[table]:
        assert part in caught.message, part
    assert table != "edges" or caught.message.count("what to do:") == 5


def test_only_twenty_problems_are_described(tmp_path: Path) -> None:
    edges = "source,target\n" + "a,zoe\n" * 50
    with rejects("node-unknown") as caught:
        read_graph(**write(tmp_path, edges=edges, features=FEATURES))
    assert "50 problems, the first 20 of which are" in caught.message
    assert caught.message.count("is unknown") == 20


def test_tables_of_edges_are_joined_with_equal_mean_weights(tmp_path: Path) -> None:
    calls, mails = "source,target,weight\na,b,100\nb,c,300\n", "sender,receiver\na,b\nc,a\n"
    paths = write(tmp_path, calls=calls, mails=mails)
    graph = read_graph([paths["calls"], paths["mails"]])
    assert weights(graph) == {("a", "b"): 1.5, ("b", "c"): 1.5, ("c", "a"): 1}
    assert repairs(graph)["edge-tables-joined"] == 2
    paths |= write(tmp_path, mails="sender,receiver\na,d\n", features=FEATURES)
    with rejects("node-unknown"):
        read_graph([paths["calls"], paths["mails"]], features=paths["features"])


def test_tables_of_features_are_concatenated(tmp_path: Path) -> None:
    paths = write(
        tmp_path,
        edges="from_id,to_id\np1,s1\np2,s1\n",
        people="person_id,age\np1,30\np2,50\n",
        shops="shop_id,town\ns1,Ulm\ns2,Ulm\n",
    )
    graph = read_graph(paths["edges"], features=[paths["people"], paths["shops"]])
    assert graph.node_ids.tolist() == ["p1", "p2", "s1", "s2"]
    assert graph.plan is not None
    assert set(graph.plan.names) >= {"age", "age is missing", "town=Ulm", "table=people", "table=shops"}
    paths |= write(tmp_path, shops="shop_id,town\np1,Ulm\n")
    with rejects("id-duplicate"):
        read_graph(paths["edges"], features=[paths["people"], paths["shops"]])


def test_a_class_among_the_features_is_the_label_and_no_feature(tmp_path: Path) -> None:
    features = "id,f,kind,split\na,1,x,train\nb,2,,val\nc,4,y,test\n"
    paths = write(tmp_path, edges="source,target\na,b\nb,c\n", features=features)
    graph = read_graph(**paths, label_column="kind")
    assert graph.class_names == ("x", "y")
    assert graph.features.tolist() == [[1], [2], [4]]
    assert graph.val_mask is not None
    assert graph.val_mask.tolist() == [[False], [True], [False]]
    labels = write(tmp_path, labels="id,kind\na,y\n")["labels"]
    beside = read_graph(**paths, labels=labels)
    assert beside.plan is not None
    assert beside.plan.names == ("f",)
    assert beside.class_names == ("y",)


def test_labels_without_a_labelled_edge_are_not_called_missing(tmp_path: Path) -> None:
    graph = read_graph(**write(tmp_path, edges="0,1\n1,2\n2,3\n", labels="id,label\n0,x\n3,y\n"))
    found = profile(graph)
    assert found.labelled == 2
    assert "No edge joins two labelled nodes" in found.verdict
    assert "no labels" not in found.verdict


def test_zeros_and_ones_beside_unused_columns_stay_unchanged(tmp_path: Path) -> None:
    features = "id,mail,f,g\na,x@y,1,0\nb,z@y,250,1\nc,w@y,4,1\n"
    graph = read_graph(**write(tmp_path, edges="source,target\na,b\nb,c\n", features=features))
    assert graph.features.tolist() == [[1, 0], [250, 1], [4, 1]]
    assert graph.feature_names == ("f", "g")
