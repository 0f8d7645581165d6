"""Type inference, encoders checked by hand, and plans that encode new rows."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest

from h3gnn.errors import GraphError, InputError
from h3gnn.graphs.convert import as_graph
from h3gnn.tables.infer import Cells, infer_type
from h3gnn.tables.plan import TablePlan, encode_table
from tests.rejects import rejects

SENTENCES = [f"the {a} {b} sleeps well" for a in ("red", "old", "big") for b in ("fox", "cat", "owl", "bee")]
JAPANESE = ["今日は良い天気ですねえ皆さん", "明日は雨が降るでしょうか", "昨日はとても寒かったですね"]


@pytest.mark.parametrize(
    ("name", "cells", "kind"),
    [
        ("age", [31, 45, 27], "number"),
        ("age", ["31", "", "27"], "number"),
        ("age", ["31", "n/a", "27"], "number"),
        ("price", ["$1,200.50", "$80", "$2,000"], "number"),
        ("price", ["3,14", "2,5", "10,75"], "number"),
        ("vip", [True, False, None], "boolean"),
        ("vip", ["yes", "no", "no"], "boolean"),
        ("vip", [0, 1, 1], "boolean"),
        ("town", ["Ulm", "Bonn", "Ulm"], "category"),
        ("zip", ["01067", "01067", "80331"], "category"),
        ("branch_id", [3, 3, 4], "category"),
        ("opened", ["2020-01-31", "2021-12-01", ""], "date"),
        ("opened", ["31.01.2020", "01.12.2021", "02.03.2020"], "date"),
        ("opened", ["1/31/2020", "12/1/2021", "3/2/2020"], "date"),
        ("at", pd.to_datetime(["2020-01-01 10:00", "2020-01-02 11:00", "NaT"]), "date"),
        ("tags", ["a|b", "b|c", "a", "b"], "list"),
        ("tags", ['["a", "b"]', "[]", '["b"]'], "list"),
        ("tags", [["a"], ["b", "a"], None], "list"),
        ("memo", SENTENCES, "text"),
        ("memo", JAPANESE, "text"),
        ("email", ["a@x.de", "b@x.de", "c@x.de"], "identifier"),
        ("customer_id", [7, 8, 9], "identifier"),
        ("__index_level_0__", [0, 1, 2], "identifier"),
        ("unit", ["EUR", "EUR", "EUR"], "constant"),
        ("none", [None, None, None], "constant"),
    ],
)
def test_a_column_is_recognised(name: str, cells: Any, kind: str) -> None:
    found = infer_type(name, Cells(pd.Series(cells)))
    assert (found.kind, found.doubt) == (kind, "")
    assert found.reason


@pytest.mark.parametrize(
    ("cells", "code"),
    [
        (["1", "2", "three", "4"], "cell-unreadable"),
        (["2020-01-01", "2020-01-02", "soon"], "cell-unreadable"),
        (["1/2/2020", "3/4/2020", "5/6/2020"], "column-ambiguous"),
        (["1", "2", "inf"], "feature-not-finite"),
        ([[1.5, 2.0], [1.0], [0.5, 0.1]], "cell-unreadable"),
        ([1.0, np.inf, 2.0], "feature-not-finite"),
    ],
)
def test_ambiguous_cells_are_rejected_with_a_remedy(cells: Any, code: str) -> None:
    with rejects(code, GraphError) as caught:
        encode_table(pd.DataFrame({"c": pd.Series(cells), "x": range(len(cells))}))
    assert "; " in caught.message


def test_a_doubtful_cell_is_named_with_the_declarations_that_resolve_it() -> None:
    with rejects("cell-unreadable") as caught:
        encode_table(pd.DataFrame({"c": ["1", "2", "three", "4"]}))
    for part in ("row 2, column 'c'", "'three'", "c=category", "c=number"):
        assert part in caught.message


def test_numbers_gaps_and_categories_are_encoded_as_computed_by_hand() -> None:
    frame = pd.DataFrame({"age": [10.0, 30.0, None, 20.0], "town": ["b", "a", None, "b"]})
    values, plan, _ = encode_table(frame)
    deviation = np.sqrt(200 / 3)
    assert plan.names == ("age", "age is missing", "town=b", "town=a", "town is missing")
    ages = [-10 / deviation, 10 / deviation, 0, 0]  # the median is the mean here
    others = [[0, 1, 0, 0], [0, 0, 1, 0], [1, 0, 0, 1], [0, 1, 0, 0]]
    expected = np.column_stack([ages, others])
    np.testing.assert_allclose(values, expected, atol=1e-12)


def test_dates_are_elapsed_days_and_phases_of_cycles() -> None:
    days = pd.date_range("2021-01-03", periods=9, freq="D")  # a Sunday, with which weeks begin
    frame = pd.DataFrame({"day": days.strftime("%Y-%m-%d"), "town": list("ababbbaba")})
    values, plan, _ = encode_table(frame)
    at = {name: values[:, place] for place, name in enumerate(plan.names)}
    np.testing.assert_allclose(np.diff(at["day"]), 1 / np.arange(9).std())
    np.testing.assert_allclose(at["day, sine of the week"][:2], [0, np.sin(2 * np.pi / 7)], atol=1e-9)
    np.testing.assert_allclose(at["day, cosine of the week"][[0, 7]], [1, 1], atol=1e-9)
    assert "elapsed time" in plan.columns[0].description


def test_lists_are_marked_item_by_item_and_many_items_are_hashed() -> None:
    values, plan, _ = encode_table(pd.DataFrame({"tags": ["a|b", "b", "b|a", ""], "n": [1.0, 2, 3, 4]}))
    assert plan.names[:3] == ("tags: a", "tags: b", "tags is missing")
    assert values[:, :3].tolist() == [[1, 1, 0], [0, 1, 0], [1, 1, 0], [0, 0, 1]]
    many: Any = [[f"item{row}", f"item{row + 1}", "all"] for row in range(400)]
    values, plan, _ = encode_table(pd.DataFrame({"tags": many}))
    assert "hashed" in plan.columns[0].description
    assert values.shape == (400, 256)
    assert 2 <= values.sum(axis=1).min() <= values.sum(axis=1).max() <= 3


def test_categories_that_are_mostly_rare_are_encoded_by_their_characters() -> None:
    starts = ("Ober", "Nieder", "Neu", "Alt", "Bad ", "Gross")
    middles = ("kirch", "stein", "bach", "feld", "berg", "hof", "wald", "brunn", "dorf", "au")
    ends = ("en", "ing", "heim", "hausen", "burg", "stadt", "roda", "leben", "itz", "ow")
    cells = ["".join(town) for town in itertools.product(starts, middles, ends) for _ in range(4)]
    values, plan, _ = encode_table(pd.DataFrame({"city": cells}))
    (column,) = plan.columns
    assert (column.kind, column.encoder) == ("category", "text")
    assert "their characters are encoded" in column.reason
    assert (values.std(axis=0) > 0).all()
    near = np.linalg.norm(values[cells.index("Oberkirchen")] - values[cells.index("Oberkirching")])
    far = np.linalg.norm(values[cells.index("Oberkirchen")] - values[cells.index("Altwaldow")])
    assert near < far
    back = TablePlan.from_dict(json.loads(json.dumps(plan.as_dict())), plan.tensors())
    again, _, _ = encode_table(pd.DataFrame({"city": cells[:9]}), back)
    np.testing.assert_allclose(again, values[:9], atol=1e-9)


def test_features_know_their_column_and_role() -> None:
    frame = pd.DataFrame({"memo": [*SENTENCES, None], "age": [None, *range(12)], "town": [*("ab" * 6), "a"]})
    _, plan, _ = encode_table(frame)
    assert [feature.name for feature in plan.features] == [*plan.names]
    roles: dict[str, set[str]] = {}
    for feature in plan.features:
        roles.setdefault(feature.column.name, set()).add(feature.role)
    assert roles == {"memo": {"component", "missing"}, "age": {"value", "missing"}, "town": {"value"}}


@pytest.mark.parametrize(
    ("name", "kind"), [("category", "boolean"), ("is_fraud", "label"), ("class", "label")]
)
def test_one_list_of_class_names_serves_tables_and_node_attributes(name: str, kind: str) -> None:
    _, plan, _ = encode_table(pd.DataFrame({name: [0, 1, 1, 0], "f": [1.0, 2.0, 3.0, 4.0]}))
    assert plan.columns[0].kind == kind
    graph = nx.path_graph(4)
    nx.set_node_attributes(graph, {node: {name: node % 2, "z": 1.0} for node in graph})
    with pytest.warns(UserWarning, match="attributes not used") as caught:
        as_graph(graph)
    assert (f"labels='{name}'" in str(caught[0].message)) == (kind == "label")


def test_rare_and_unknown_categories_share_a_column() -> None:
    words = ["a"] * 600 + ["b"] * 399 + ["odd"]
    values, plan, _ = encode_table(pd.DataFrame({"w": words}))
    assert plan.names == ("w=a", "w=b", "w is rare")
    assert values[-1].tolist() == [0, 0, 1]
    new, _, repairs = encode_table(pd.DataFrame({"w": ["b", "never met"]}), plan)
    assert new.tolist() == [[0, 1, 0], [0, 0, 1]]
    assert [(repair.code, repair.count) for repair in repairs] == [("unknown-categories", 1)]
    assert not encode_table(pd.DataFrame({"w": ["b", "odd"]}), plan)[2]


def test_unknown_categories_and_new_gaps_are_reported() -> None:
    frame = pd.DataFrame({"w": ["a", "b", "a", "b"], "x": [1.0, 2, 3, 4]})
    _, plan, _ = encode_table(frame)
    new, _, repairs = encode_table(pd.DataFrame({"x": [None, 2.5], "w": ["c", "a"]}), plan)
    assert new[0].tolist() == [0, 0, 0]  # an unknown word is nowhere, a gap is the median
    assert {(repair.code, repair.count, repair.fields) for repair in repairs} == {
        ("unknown-categories", 1, ("w",)),
        ("missing-values-imputed", 1, ("x",)),
    }
    with rejects("column-missing"):
        encode_table(frame.rename(columns={"w": "v"})[["x", "v"]], plan)
    with rejects("plan-differs"):
        encode_table(frame, plan, columns={"w": "text"})


def test_texts_that_share_words_are_near_each_other() -> None:
    texts = [*SENTENCES, "an invoice for steel and coal", None]
    values, plan, _ = encode_table(pd.DataFrame({"memo": texts}))
    assert plan.columns[0].kind == "text"
    near = np.linalg.norm(values[0] - values[1])  # the red fox, the red cat
    far = np.linalg.norm(values[0] - values[-2])
    assert near < far
    assert np.abs(values[-1][:-1]).max() == 0
    assert values[-1][-1] == 1
    assert values[:, :-1].std(axis=0).max() == pytest.approx(1, rel=0.05)


def test_texts_without_spaces_are_encoded_by_characters() -> None:
    texts = ["東京の天気は晴れです今日も", "東京の天気は雨です今日も", "猫が好きな人は多いのですよ"]
    values, plan, _ = encode_table(pd.DataFrame({"memo": texts}))
    assert plan.columns[0].form == "characters"
    assert np.linalg.norm(values[0] - values[1]) < np.linalg.norm(values[0] - values[2])


def test_a_table_of_numbers_stays_unchanged() -> None:
    frame = pd.DataFrame({"a": [1.0, 2000.0], "b": [0, 1], "c": [5, 5]})
    graph = as_graph(frame, np.array([[0], [1]]))
    assert graph.features.tolist() == [[1, 0, 5], [2000, 1, 5]]
    assert graph.plan is not None
    assert graph.plan.as_is


def test_numbers_beside_unused_columns_stay_unchanged() -> None:
    frame = pd.DataFrame({"mail": ["a@b", "c@d", "e@f"], "a": [1.0, 2000.0, 7.0], "label": ["x", None, "y"]})
    values, plan, repairs = encode_table(frame)
    assert values.tolist() == [[1], [2000], [7]]
    assert plan.label == "label"
    assert [(repair.code, repair.fields) for repair in repairs] == [
        ("column-unused", ("mail",)),
        ("column-is-label", ("label",)),
    ]


def test_a_class_known_for_few_rows_is_no_feature_and_a_coordinate_is_no_class() -> None:
    few = pd.DataFrame({"is_bad": [None] * 8 + ["yes", "no"], "x": np.arange(10.0), "y": np.arange(10.0)})
    _, plan, _ = encode_table(few)
    assert [column.kind for column in plan.columns] == ["label", "number", "number"]
    _, plan, _ = encode_table(few, columns={"is_bad": "boolean"})
    assert plan.label is None
    assert "is_bad is missing" in plan.names


def test_declared_kinds_override_inference() -> None:
    days = ["1/2/2020", "1/2/2020", "3/2/2020"]
    frame = pd.DataFrame({"zip": [10115, 10115, 80331], "n": ["1", "2", "x"], "day": days})
    values, plan, _ = encode_table(frame, columns={"zip": "category", "n": "number", "day": "date:dmy"})
    assert plan.names[:2] == ("zip=10115", "zip=80331")
    assert values[2][plan.names.index("n is missing")] == 1
    assert "1 cells of another kind" in plan.columns[1].reason
    _, month_first, _ = encode_table(frame, columns={"n": "identifier", "day": "date:mdy"})
    spans = [one.columns[2].state()[0]["scale"] for one in (plan, month_first)]
    assert spans[0] < spans[1]  # a month apart, and two
    with rejects("column-missing"):
        encode_table(frame, columns={"nobody": "text"})
    with rejects("column-kind-unknown"):
        encode_table(frame, columns={"zip": "colour"})


def test_a_plan_is_restored_from_json_and_tensors() -> None:
    columns: dict[str, Any] = {"memo": SENTENCES, "town": ["a", "b", None] * 4, "age": [1.0, None] * 6}
    columns |= {"day": pd.date_range("2020", periods=12), "v": [[1.0, float(row)] for row in range(12)]}
    frame = pd.DataFrame(columns)
    values, plan, _ = encode_table(frame)
    back = TablePlan.from_dict(json.loads(json.dumps(plan.as_dict())), plan.tensors())
    again, _, _ = encode_table(frame.iloc[::-1, ::-1], back)  # rows and columns in another order
    np.testing.assert_allclose(again[::-1], values, atol=1e-9)


def test_a_sentence_model_in_a_folder_encodes_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = pd.DataFrame({"memo": SENTENCES})
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with rejects("text-model-missing"):
        encode_table(frame, text_model=str(tmp_path / "none"))
    with rejects("library-missing"):
        encode_table(frame, text_model=str(tmp_path))

    class Model:
        def __init__(self, folder: str, local_files_only: bool) -> None:
            assert local_files_only

        def encode(self, texts: list[str], show_progress_bar: bool) -> Any:
            return np.array([[len(text), text.count("e")] for text in texts], dtype=np.float32)

    library = ModuleType("sentence_transformers")
    library.SentenceTransformer = Model  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sentence_transformers", library)
    values, plan, _ = encode_table(frame, text_model=str(tmp_path))
    assert values.shape == (12, 2)
    assert "sentence model" in plan.columns[0].description
    np.testing.assert_allclose(encode_table(frame, plan)[0], values)


@pytest.mark.parametrize("modules", ['[{"type": "my_code.Module"}]', '{"type": "os.system"}', "no JSON"])
def test_a_sentence_model_with_custom_code_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, modules: str
) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    frame = pd.DataFrame({"memo": SENTENCES})
    (tmp_path / "modules.json").write_text(modules)
    with pytest.raises(InputError, match=r"modules\.json"):
        encode_table(frame, text_model=str(tmp_path))
    (tmp_path / "modules.json").write_text('[{"idx": 0, "type": "sentence_transformers.models.Transformer"}]')
    with rejects("library-missing"):
        encode_table(frame, text_model=str(tmp_path))
