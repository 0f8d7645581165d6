"""`Database`: what each answer may use, what is fitted once, time, new rows, and recommendations."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from h3gnn import H3GNN, Database, Graph
from tests.rejects import rejects

Frames = dict[str, pd.DataFrame]
CLIENTS, ITEMS, ORDERS = 40, 10, 3
MODEL = H3GNN.from_preset("single", epochs=2, channels=8, heads=2, device="cpu")
SPRING = "2024-03-31"


def shop() -> Frames:
    """Clients, good if their orders are large, except one; three orders each, of January to June, and lines.

    Two lines have a quantity of 500. Clients with even numbers rate the first five products, others the rest.
    """
    draw = np.random.default_rng(0)
    client = np.repeat(np.arange(CLIENTS), ORDERS)
    good = np.arange(CLIENTS) % 2 == 0
    ranks = np.where(good ^ (np.arange(CLIENTS) == 2), "good", "poor")
    month = np.tile([1, 3, 5], CLIENTS) + draw.integers(0, 2, len(client))
    orders = pd.DataFrame(
        {
            "order_id": 9000 + np.arange(len(client)),
            "client_id": 100 + client,
            "day": [f"2024-{one:02}-{draw.integers(1, 28):02}" for one in month],
            "amount": np.where(good[client], 80, 20) + draw.integers(-15, 15, len(client)),
            "paid": draw.choice(["cash", "card"], len(client)),
        }
    )
    lines = pd.DataFrame(
        {
            "order_id": np.repeat(orders["order_id"].to_numpy(), 2),
            "product_id": [one for _ in orders.index for one in draw.choice(ITEMS, 2, replace=False)],
            "quantity": draw.integers(1, 5, 2 * len(orders)),
        }
    )
    lines.loc[[50, 150], "quantity"] = 500
    rated = [
        (one, item) for one in range(CLIENTS) for item in draw.choice(5, 3, replace=False) + 5 * (one % 2)
    ]
    return {
        "clients": pd.DataFrame(
            {
                "client_id": 100 + np.arange(CLIENTS),
                "name": [f"Client {one % 38}" for one in range(CLIENTS)],
                "age": draw.integers(18, 80, CLIENTS),
                "rank": pd.Series(ranks).where(np.arange(CLIENTS) < 30, None),
            }
        ),
        "orders": orders,
        "lines": lines,
        "products": pd.DataFrame({"product_id": np.arange(ITEMS), "price": draw.integers(1, 50, ITEMS)}),
        "ratings": pd.DataFrame(
            {
                "client_id": [100 + one for one, _ in rated],
                "product_id": [item for _, item in rated],
                "stars": draw.integers(3, 6, len(rated)),
            }
        ),
    }


def database(frames: Frames | None = None, **options: Any) -> Database:
    return Database(shop() if frames is None else frames, model=MODEL, **options)


def parts(graph: Graph) -> dict[str, np.ndarray[Any, Any]]:
    """Return all that a model sees of a graph."""
    assert graph.link_columns is not None
    found = {"features": graph.dense_features().numpy(), "joined": graph.link_columns.values}
    found["edges"] = graph.edge_index.numpy()
    return found | ({} if graph.path_columns is None else {"paths": graph.path_columns.values})


def same(left: Graph, right: Graph) -> bool:
    one, other = parts(left), parts(right)
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a database in which a column, a table and recommendations are fitted; only read it."""
    folder = tmp_path_factory.mktemp("kept") / "models"
    made = database(folder=folder)
    made.predict("clients.rank", head="logistic")
    made.embed("products")
    made.recommend("ratings")
    return folder


def test_each_model_is_fitted_once() -> None:
    fitted, made = [], database()
    train = made.train

    def counted(model: H3GNN, graph: Graph, folder: Path | None) -> H3GNN:
        fitted.append(graph.num_nodes)
        return train(model, graph, folder)

    made.train = counted
    made.predict("clients.rank", head="logistic")
    made.predict("clients.rank=good", head="logistic")
    made.embed("products")
    made.similar("products", 3)
    made.anomalies("products")
    assert fitted == [CLIENTS, ITEMS]
    assert [one.title for one in made.fitted] == ["clients.rank", "products"]


def test_a_folder_gives_the_same_answers_without_the_tables(kept: Path) -> None:
    first, again = database(folder=kept), Database.load(kept)
    again.train = lambda *_: pytest.fail("nothing is fitted again")
    asked: list[Callable[[Database], pd.DataFrame]] = [
        lambda one: one.predict("clients.rank", head="logistic").table,
        lambda one: one.embed("products"),
        lambda one: one.similar("products", [1, 2], k=3),
        lambda one: one.anomalies("products"),
        lambda one: one.recommend("ratings", [100], top=3),
    ]
    for ask in asked:
        pd.testing.assert_frame_equal(ask(first), ask(again))
    with rejects("tables-missing"):  # data frames are not stored
        again.embed("clients")


def test_tables_that_changed_are_rejected(kept: Path) -> None:
    changed = shop()
    changed["lines"]["quantity"] += 1
    with rejects("tables-differ"):
        Database(changed, folder=kept)
    with rejects("tables-differ"):
        Database({name: one for name, one in shop().items() if name != "lines"}, folder=kept)
    with rejects("already-fitted"):
        Database(shop(), folder=kept, as_of=SPRING)


@pytest.mark.parametrize("label", ["clients.rank", "orders.paid", "orders.amount"])
def test_the_column_to_predict_is_no_feature_of_any_row(label: str) -> None:
    table, column = label.split(".")
    frames = shop()
    values = frames[table][column].sample(frac=1, random_state=0).to_numpy()
    frames[table] = frames[table].assign(**{column: values})
    first, other = (one.view(table, column, label_time="now") for one in (database(), database(frames)))
    assert same(first, other)
    assert first.plan is not None
    assert column not in {one.name for one in first.plan.columns}  # not found to be a leak: it is not read
    assert not any(column in name.split(" ") for name in (*first.feature_names, *first.link_columns.names))  # type: ignore[union-attr]
    unlabelled = (one.view(table) for one in (database(), database(frames)))
    assert not same(*unlabelled)


def test_the_order_of_tables_and_their_source_change_nothing(tmp_path: Path) -> None:
    frames = shop()
    for name, one in frames.items():
        one.to_csv(tmp_path / f"{name}.csv", index=False)
    first = database(frames).view("clients")
    assert same(first, database(dict(reversed(frames.items()))).view("clients"))
    assert same(first, database(tmp_path).view("clients"))  # type: ignore[arg-type]


def test_as_of_a_date_is_the_database_of_that_date() -> None:
    then = shop()
    then["orders"] = then["orders"][then["orders"]["day"] <= SPRING]
    assert 0 < len(then["orders"]) < len(shop()["orders"])
    then["lines"] = then["lines"][then["lines"]["order_id"].isin(then["orders"]["order_id"])]
    today = database(as_of=SPRING)
    for name in ("clients", "orders", "products"):
        assert same(today.view(name), database(then).view(name))


def test_rows_that_are_later_than_a_label_are_a_question() -> None:
    frames = shop()
    frames["clients"]["joined"] = "2024-02-15"
    made = database(frames)
    with rejects("label-time-unclear"):
        made.predict("clients.rank")
    assert not made.stored.fitted
    changed = {**frames, "orders": frames["orders"].copy()}
    later = changed["orders"]["day"] > "2024-02-15"
    changed["orders"].loc[later, "amount"] = 1
    views = [database(one).view("clients", "rank", label_time="row") for one in (frames, changed)]
    assert same(*views)
    assert not same(*(database(one).view("clients", "rank", label_time="now") for one in (frames, changed)))
    made.fit("clients.rank", label_time="row")
    with rejects("already-fitted"):
        made.predict("clients.rank", label_time="now")


def test_heads_learn_from_rows_before_a_date_only() -> None:
    frames = shop()
    later = frames["orders"]["day"] >= "2024-05-01"
    found = database(frames).predict("orders.paid", label_time="row", test_from="2024-05-01", head="logistic")
    assert found.table["node"].tolist() == frames["orders"]["order_id"][later].tolist()
    assert found.labelled == int((~later).sum())
    other = {"cash": "card", "card": "cash"}
    turned = {**frames, "orders": frames["orders"].copy()}
    turned["orders"].loc[later, "paid"] = turned["orders"]["paid"][later].map(other)
    again = database(turned).predict("orders.paid", label_time="row", test_from="2024-05-01", head="logistic")
    columns = ["node", "class", "p_cash", "p_card"]
    pd.testing.assert_frame_equal(found.table[columns], again.table[columns])
    assert found.scores.mean["accuracy"] == pytest.approx(1 - again.scores.mean["accuracy"])
    for date, code in (("2030-01-01", "date-splits-nothing"), ("soon", "date-invalid")):
        with rejects(code):
            database(frames).predict("orders.paid", label_time="row", test_from=date)
    with rejects("time-missing"):
        database(frames).predict("clients.rank", label_time="now", test_from=SPRING)


def test_linked_rows_predict_what_the_own_row_cannot() -> None:
    found = database().predict("clients.rank", head="logistic")
    assert found.table["node"].tolist() == list(range(130, 140))
    assert found.table["class"].tolist() == ["good", "poor"] * 5
    assert found.table["name"].tolist() == [f"Client {one % 38}" for one in range(30, 40)]
    numbers = database().predict("orders.amount>50", label_time="now", head="logistic", labelled_too=True)
    assert set(numbers.table["class"]) == {"not amount>50", "amount>50"}


def twins() -> Frames:
    """A new client with the cells and the orders of client 100."""
    frames = shop()
    own = frames["orders"][frames["orders"]["client_id"] == 100]
    lines = frames["lines"][frames["lines"]["order_id"].isin(own["order_id"])]
    return {
        "clients": frames["clients"][:1].assign(client_id=500).drop(columns="rank"),
        "orders": own.assign(client_id=500, order_id=own["order_id"] + 5000),
        "lines": lines.assign(order_id=lines["order_id"] + 5000),
    }


def test_new_rows_are_seen_as_those_of_the_fit() -> None:
    made = database()
    before = made.predict("clients.rank", head="logistic")
    embedding = made.model("clients.rank").embedding_.copy()
    found = made.predict("clients.rank", head="logistic", new=twins())
    assert found.table["node"].tolist() == [500]
    assert found.table["class"].tolist() == ["good"]
    again = made.predict("clients.rank", head="logistic")
    pd.testing.assert_frame_equal(before.table, again.table)
    assert np.array_equal(made.model("clients.rank").embedding_, embedding)
    extension, rows = made.extend("clients.rank", twins())
    assert (extension.new, extension.node_ids.tolist()) == (1, [500])
    assert rows.find(extension.graph.node_ids, ["500"]) == [500]
    view = extension.graph
    for name, values in parts(view).items():
        if name in ("features", "joined"):
            columns = [at for at, one in enumerate(_names(view, name)) if "ratings" not in one]
            np.testing.assert_allclose(values[-1, columns], values[0, columns], rtol=1e-5, err_msg=name)
    everyone, _ = made.extend("clients.rank", twins(), refresh=True)
    assert everyone.node_ids.tolist() == [*range(100, 140), 500]
    assert np.array_equal(everyone.embedding[-1:], extension.embedding)


def _names(graph: Graph, part: str) -> tuple[str, ...]:
    assert graph.link_columns is not None
    return graph.feature_names if part == "features" else graph.link_columns.names


def test_new_rows_that_do_not_fit_are_rejected() -> None:
    made = database()
    made.fit("clients.rank")
    known = {"clients": shop()["clients"][:1]}
    without_age = {"clients": twins()["clients"].drop(columns="age")}
    for new, code in (
        (known, "node-already-fitted"),
        ({"orders": twins()["orders"].assign(client_id=100)}, "new-nodes-missing"),
        ({"client": twins()["clients"]}, "table-missing"),
        (without_age, "column-missing"),
    ):
        with rejects(code):
            made.extend("clients.rank", new)
    dated = database(as_of=SPRING)
    with rejects("extend-as-of"):
        dated.extend("clients", twins())


def test_values_that_are_nodes_take_no_new_ones(tmp_path: Path) -> None:
    file = tmp_path / "graph.toml"
    paid = '[tables.{}]\nkey = ["{}"]\ntime = ""\n'
    text = paid.format("clients", "client_id") + paid.format("orders", "order_id") + 'nodes = ["paid"]\n'
    text += '[[tables.orders.links]]\ncolumns = ["client_id"]\nto = "clients"\n'
    file.write_text(f'source = "tables"\n{text}', encoding="utf-8")
    frames = {name: one for name, one in shop().items() if name in ("clients", "orders")}
    made = database(frames, schema=file)
    assert made.types == ("clients", "orders", "paid")
    assert made.embed("paid").index.tolist() == ["card", "cash"]
    with rejects("new-values"):
        made.extend("paid", {"orders": twins()["orders"].assign(client_id=100, paid="bill")})


def test_recommendations_are_products_that_a_client_has_not_rated(kept: Path) -> None:
    ratings = shop()["ratings"]
    known = set(zip(ratings["client_id"], ratings["product_id"], strict=True))
    found = Database.load(kept).recommend("ratings", top=4)
    pairs = set(zip(found["user"], found["item"], strict=True))
    assert len(pairs) == len(found)
    assert not pairs & known
    assert set(found["user"]) == set(shop()["clients"]["client_id"])
    assert set(found["item"]) <= set(range(ITEMS))
    best = found.groupby("user").head(2)  # three of the five products of a half are rated
    assert ((best["item"] >= 5) == (best["user"] % 2 == 1)).mean() > 0.9


def test_products_in_one_order_belong_together() -> None:
    lines = shop()["lines"]
    pairs = lines.merge(lines, on="order_id")
    partners = set(pairs["product_id_y"][(pairs["product_id_x"] == 3) & (pairs["product_id_y"] != 3)])
    found = database().together("lines", 3, top=ITEMS)
    assert set(found["similar"]) == partners
    counts = pairs[pairs["product_id_x"] == 3].groupby("product_id_y")["order_id"].nunique()
    assert found["together"].tolist() == [counts[one] for one in found["similar"]]


def test_unusual_rows_of_a_link_table_come_first() -> None:
    lines = shop()["lines"]
    found = database().anomalies("lines")
    planted = [f"{one.order_id}/{one.product_id}" for one in lines.loc[[50, 150]].itertuples()]
    assert sorted(found["node"][:2]) == sorted(planted)
    assert "neighbours" not in found  # lines do not refer to each other
    assert len(found) == len(lines)


@pytest.mark.parametrize(
    ("ask", "code"),
    [
        (lambda one: one.embed("client"), "type-unknown"),
        (lambda one: one.predict("client.rank"), "column-unknown"),
        (lambda one: one.predict("clients.rang"), "column-missing"),
        (lambda one: one.predict("clients.client_id"), "label-has-role"),
        (lambda one: one.predict("clients.rank=great"), "class-unknown"),
        (lambda one: one.predict("orders.amount>much", label_time="now"), "value-invalid"),
        (lambda one: one.similar("clients", "Client 99"), "unknown-node"),
        (lambda one: one.similar("clients", "Client 1"), "name-ambiguous"),
        (lambda one: one.recommend("clients"), "ends-missing"),
        (lambda one: one.recommend("ratings", [999]), "unknown-node"),
        (lambda one: one.recommend("ratings", weight="star"), "column-missing"),
        (lambda one: one.named(None), "type-missing"),
    ],
)
def test_unknown_names_are_rejected_before_a_fit(ask: Any, code: str) -> None:
    made = database()
    made.train = lambda *_: pytest.fail("rejected after the work")
    with rejects(code):
        ask(made)


def test_a_suggestion_is_made_for_a_name_with_a_mistake() -> None:
    for name, meant in (("client.rank", "clients.rank"), ("clients.Rank", "rank")):
        with rejects("column-unknown" if name.startswith("client.") else "column-missing") as caught:
            database().predict(name)
        assert caught.message.endswith(f"did you mean {meant}?")


def test_a_folder_holds_one_thing(kept: Path, tmp_path: Path) -> None:
    with rejects("source-is-no-tables"):
        Database(kept)
    with rejects("file-missing"):
        Database(tmp_path / "nothing")
    (tmp_path / "other.txt").touch()
    with rejects("folder-not-empty"):
        database(folder=tmp_path)
    with rejects("database-missing"):
        Database.load(tmp_path)


def test_rows_are_not_alike_because_of_their_names() -> None:
    frames = shop()
    first = ["Black", "White"] * (ITEMS // 2)
    frames["products"]["name"] = [f"{one} {at} mug" for at, one in enumerate(first)]
    frames["products"]["note"] = [f"{one} paint on all sides of it {at}" for at, one in enumerate(first)]

    def columns(graph: Graph) -> set[str]:
        return {one.name for one in graph.plan.columns} if graph.plan else set()

    made = database(frames)
    assert columns(made.view("products")) == {"price", "note"}
    assert [one.fields for one in made.view("products").provenance.repairs if one.code == "names-left-out"]
    assert columns(made.view("products", "price", task="regression")) == {"name", "note"}
    declared = database(frames, columns={"products.name": "text"})
    assert columns(declared.view("products")) == {"price", "name", "note"}
    frames["products"]["name"] = first  # these describe products
    assert columns(database(frames).view("products")) == {"price", "name", "note"}


def test_reasons_name_the_rows_that_joined_columns_count(tmp_path: Path) -> None:
    frames = shop()
    kinds = pd.DataFrame({"kind_id": [1, 2], "name": ["hot", "cold"]})
    frames["products"]["kind_id"] = np.arange(ITEMS) % 2 + 1
    database({**frames, "kinds": kinds}, folder=tmp_path / "kept").similar("clients", 100, k=CLIENTS)
    found = Database.load(tmp_path / "kept").similar("clients", 100, k=CLIENTS)
    texts = [text for one in found["features"] for text in one]
    assert any("kinds=hot (" in text or "kinds=cold (" in text for text in texts)
    assert not any(".share" in text and "kinds" in text for text in texts)


def test_a_table_has_several_recommenders(tmp_path: Path) -> None:
    made = database(folder=tmp_path / "kept")
    plain = made.recommend("ratings", [100])
    strong = made.recommend("ratings", [100], weight="stars", at_least=5)
    assert plain["item"].tolist() != strong["item"].tolist()
    turned = made.recommend("ratings", users="products", items="clients")
    assert set(turned["user"]) <= set(range(ITEMS))
    again = Database.load(tmp_path / "kept")
    pd.testing.assert_frame_equal(again.recommend("ratings", [100], weight="stars"), strong)
    pd.testing.assert_frame_equal(again.recommend("ratings", users="Products"), turned)
    pd.testing.assert_frame_equal(again.recommend("ratings", [100]), plain)  # fitted without options
    assert len(again.stored.links) == 3
    assert (tmp_path / "kept" / "ratings.links.model").is_dir()
    with rejects("recommender-ambiguous"):
        again.recommend("ratings", users="clients")


def test_who_chooses_does_not_matter_for_items_in_one_basket(tmp_path: Path) -> None:
    frames = shop()
    frames["sellers"] = pd.DataFrame({"seller_id": np.arange(3), "size": [1, 2, 4]})
    frames["orders"]["seller_id"] = np.arange(len(frames["orders"])) % 3
    expected = database().together("lines", 3, top=ITEMS)
    for options in ({"items": "products"}, {}):
        made = database(frames, folder=tmp_path / f"kept{len(options)}")
        pd.testing.assert_frame_equal(made.together("lines", 3, top=ITEMS, **options), expected)
        with rejects("ends-ambiguous") as found:
            database(frames).recommend("lines", [100])
        words = shlex.split(found.message)
        named = [words[at + 1] for at, one in enumerate(words) if one == "--users"]
        for kind, user in zip(named, (100, 1), strict=True):  # clients by their orders, and sellers
            assert made.recommend("lines", [user], users=kind)["user"].eq(user).all()
        pd.testing.assert_frame_equal(made.together("lines", 3, top=ITEMS, **options), expected)
        assert len(made.stored.links) == 3


@pytest.mark.parametrize("ask", ["recommend", "together"])
def test_unknown_users_and_items_are_rejected_before_a_fit(tmp_path: Path, ask: str) -> None:
    made = database(folder=tmp_path / "kept")
    with rejects("unknown-node"):
        getattr(made, ask)("ratings", "nobody")
    assert not (tmp_path / "kept").exists()
    if ask == "recommend":
        with rejects("name-ambiguous"):  # of clients 100 and 138
            made.recommend("ratings", "Client 0")
    assert not (tmp_path / "kept").exists()
