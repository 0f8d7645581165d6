"""The graph of one node type: means along paths, relations, and further rows on the scales of the fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from h3gnn.estimator import H3GNN
from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.relational import (
    MOST_HOPS,
    NodeTable,
    PathFeatures,
    Reduction,
    Relation,
    RelationalGraph,
    hops_from,
    key_of,
)
from h3gnn.graphs.structural import structural_features
from h3gnn.graphs.type_view import type_view
from tests.rejects import rejects

FILMS, ACTORS, STUDIOS = 40, 25, 4


def films(films: int = FILMS, actors: int = ACTORS, *, own: bool = True) -> RelationalGraph:
    """Return films with a studio and two actors each; more rows only add to them."""
    draw = np.random.default_rng(7)
    studio, cast = draw.integers(0, STUDIOS, 200), draw.integers(0, ACTORS, (200, 2))
    year, age = draw.normal(size=(200, 3)).astype(np.float32), draw.normal(size=(200, 2)).astype(np.float32)
    year[:, 0] += 3 * studio  # films of a studio are alike
    cast[FILMS:, 0] = np.minimum(ACTORS + np.arange(200 - FILMS) // 2, actors - 1)
    pairs = np.unique(np.stack([np.repeat(np.arange(films), 2), cast[:films].ravel()]), axis=1)
    types = {
        "film": NodeTable(
            "film", np.arange(films), year[:films] if own else np.zeros((films, 0), np.float32)
        ),
        "actor": NodeTable("actor", np.arange(actors), age[:actors]),
        "studio": NodeTable("studio", np.arange(STUDIOS), np.zeros((STUDIOS, 0), np.float32)),
    }
    relations = (
        Relation("film.studio", "film", "studio", np.stack([np.arange(films), studio[:films]])),
        Relation("plays.actor", "film", "actor", pairs),
    )
    return RelationalGraph(types, relations)


def small(**settings: object) -> H3GNN:
    given = {"channels": 8, "heads": 2, "epochs": 2, "n_models": 1, "device": "cpu", "random_state": 0}
    return H3GNN.from_settings({**H3GNN().get_settings(), **given, **settings})


def test_principal_components_along_paths_are_not_standardized() -> None:
    view, alone = (type_view(films(own=own), "film") for own in (True, False))
    assert view.fit_scaler("auto").kind != "none"
    assert alone.fit_scaler("auto").kind == "none"
    assert alone.fit_scaler("columns").kind == "columns"


def test_means_along_paths_are_those_of_dictionaries() -> None:
    graph = films()
    features = PathFeatures(graph, "film")
    studio = dict(graph.relations[0].ends.T.tolist())
    cast: dict[int, list[int]] = {}
    for film, actor in graph.relations[1].ends.T.tolist():
        cast.setdefault(film, []).append(actor)
    ages = features.features("actor")
    by_title = {" > ".join(hop.title for hop in path): path for path in features.paths(2)}
    found = features.mean(
        next(path for title, path in by_title.items() if title.startswith("actor") and len(path) == 1)
    )
    np.testing.assert_allclose(found, [ages[cast[film]].mean(axis=0) for film in range(FILMS)], rtol=1e-5)
    found = features.mean(next(path for title, path in by_title.items() if title == "studio"))
    np.testing.assert_array_equal(
        found, np.eye(STUDIOS, dtype=np.float32)[[studio[one] for one in range(FILMS)]]
    )


def test_a_reduction_is_the_projection_on_the_eigenvectors_of_the_covariance() -> None:
    rows = np.random.default_rng(0).normal(size=(50, 6)) * np.arange(1, 7)
    found = Reduction.fit(rows, 2)(rows)
    centred = rows - rows.mean(axis=0)
    _, sizes, right = np.linalg.svd(centred, full_matrices=False)
    np.testing.assert_allclose(np.abs(found), np.abs(centred @ right[:2].T), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose((found**2).sum(axis=0), sizes[:2] ** 2, rtol=1e-5)


def test_each_path_has_rows_of_mean_squared_length_one() -> None:
    columns = type_view(films(), "film").path_columns
    assert columns is not None
    for part in np.split(columns.values, np.cumsum(columns.widths)[:-1], axis=1):
        assert (part**2).sum(axis=1).mean() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("own", [True, False])
def test_the_same_rows_give_the_same_graph_on_the_scales_of_the_fit(own: bool) -> None:
    graph = films(own=own)
    view = type_view(graph, "film")
    again = type_view(films(own=own), "film", fitted=(graph, view))
    assert again.provenance.sha256 == view.provenance.sha256
    assert view.num_features == (3 if own else sum(view.path_columns.widths))  # type: ignore[union-attr]


@pytest.mark.parametrize("own", [True, False])
def test_further_rows_keep_the_columns_of_the_others(own: bool) -> None:
    graph, more = films(own=own), films(FILMS + 10, ACTORS + 3, own=own)
    view = type_view(graph, "film")
    found = type_view(more, "film", fitted=(graph, view))
    assert found.num_nodes == FILMS + 10
    assert (found.path_columns.titles, found.path_columns.widths) == (  # type: ignore[union-attr]
        view.path_columns.titles,  # type: ignore[union-attr]
        view.path_columns.widths,  # type: ignore[union-attr]
    )
    assert found.relation_names == view.relation_names
    assert found.link_columns is not None
    assert view.link_columns is not None
    assert found.link_columns.plan == view.link_columns.plan
    # one step to a studio does not depend on further films
    alone = [at for at, title in enumerate(view.path_columns.titles) if title == "studio"]  # type: ignore[union-attr]
    start = np.cumsum([0, *view.path_columns.widths])[alone[0]]  # type: ignore[union-attr]
    columns = slice(start, start + STUDIOS)
    np.testing.assert_allclose(
        found.path_columns.values[:FILMS, columns],  # type: ignore[union-attr]
        view.path_columns.values[:, columns],  # type: ignore[union-attr]
        rtol=1e-5,
    )
    if not own:
        with rejects("relations-differ"):
            small().fit(view).transform(type_view(more, "film"))


def test_many_nodes_without_columns_have_structural_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("h3gnn.graphs.type_view.WIDE", FILMS - 1)
    graph, more = films(own=False), films(FILMS + 10, ACTORS + 3, own=False)
    view = type_view(graph, "film")
    assert view.path_columns is not None
    width = sum(view.path_columns.widths)
    own = view.features[:, width:].numpy()
    wanted = structural_features(view.edge_index, FILMS).numpy()
    wanted = wanted - wanted.mean(axis=0)
    np.testing.assert_allclose(own * np.sqrt((wanted**2).sum(axis=1).mean()), wanted, atol=1e-5)
    assert view.feature_names[width:] == tuple(f"structure {at + 1}" for at in range(own.shape[1]))
    assert view.fit_scaler("auto").kind == "none"

    found = type_view(more, "film", fitted=(graph, view))
    assert found.feature_names == view.feature_names
    columns = found.features[:, width:].numpy()
    np.testing.assert_array_equal(columns[:FILMS], own)
    for new in range(FILMS, FILMS + 10):
        near = found.edge_index[0, found.edge_index[1] == new].numpy()
        near = near[near < FILMS]
        mean = own[near].mean(axis=0) if len(near) else np.zeros(own.shape[1])
        np.testing.assert_allclose(columns[new], mean, atol=1e-5)
    model = small().fit(view)
    assert model.transform(found).shape == (FILMS + 10, model.embedding_.shape[1])


def test_missing_rows_of_the_fit_are_rejected() -> None:
    graph = films(FILMS + 1)
    view = type_view(graph, "film")
    with rejects("fitted-rows-missing"):
        type_view(films(), "film", fitted=(graph, view))


def test_new_rows_are_embedded_by_the_fitted_model() -> None:
    graph, more = films(), films(FILMS + 10, ACTORS + 3)
    view = type_view(graph, "film")
    model = small().fit(view)
    extended = type_view(more, "film", fitted=(graph, view))
    found = model.transform(extended)
    assert found.shape == (FILMS + 10, model.embedding_.shape[1])
    assert np.isfinite(found).all()
    with rejects("extend-relations"):
        model.extend(np.zeros((1, 3), np.float32), np.array([[0], [FILMS]]))


def test_attention_has_one_name_for_each_token() -> None:
    model = small(max_paths=4).fit(type_view(films(), "film"))
    assert len(model.token_names) == model.attention().shape[-1] == 6


def test_a_type_alone_has_no_paths() -> None:
    table = films().type("film")
    view = type_view(RelationalGraph({"film": table}, ()), "film")
    assert view.path_columns is None
    assert view.relation_names == ()


def test_paths_are_found_by_their_keys() -> None:
    features = PathFeatures(films(), "film")
    for path in features.select(MOST_HOPS):
        assert features.path(key_of(path)) == path


def fitted_views() -> tuple[Graph, Graph]:
    view = type_view(films(), "film")
    return view, replace(view, path_columns=None)


def test_without_paths_nothing_but_their_tokens_differs() -> None:
    view, bare = fitted_views()
    one, other = (small(epochs=0, hops=1).fit(graph).encoder_.state_dict() for graph in (view, bare))
    assert {*one} - {*other} == {"path_tokens.token", "path_tokens.weight"}
    same = [name for name in other if not name.startswith("fusion")]
    assert all((one[name] == other[name]).all() for name in same)


@pytest.mark.parametrize("own", [True, False])
def test_a_saved_model_embeds_as_before(tmp_path: object, own: bool) -> None:
    view = type_view(films(own=own), "film")
    model = small().fit(view)
    model.save(f"{tmp_path}/model")
    again = H3GNN.load(f"{tmp_path}/model")
    np.testing.assert_array_equal(again.embedding_, model.embedding_)
    assert again.graph_.path_columns.are_features == (not own)
    more = type_view(films(FILMS + 10, ACTORS + 3, own=own), "film", fitted=(films(own=own), view))
    np.testing.assert_allclose(again.transform(more), model.transform(more), rtol=1e-5, atol=1e-6)


def test_mini_batches_of_all_neighbours_embed_like_the_whole_graph() -> None:
    view, _ = fitted_views()
    whole = small(epochs=0, precision="float32").fit(view)
    batches = small(epochs=0, precision="float32", batch_size=7, num_neighbors=-1).fit(view)
    np.testing.assert_allclose(batches.embedding_, whole.embedding_, rtol=1e-4, atol=1e-5)


def friends(edges: np.ndarray[Any, Any], features: np.ndarray[Any, Any]) -> RelationalGraph:
    people = NodeTable("person", np.arange(len(features)), features)
    return RelationalGraph({"person": people}, (Relation("friend", "person", "person", edges),))


@pytest.mark.parametrize("mixed", [True, False])
def test_one_type_with_one_undirected_relation_is_a_graph(mixed: bool) -> None:
    draw = np.random.default_rng(3)
    features = draw.normal(size=(30, 4)).astype(np.float32)
    features[:, 0] += np.where(np.arange(30) % 2, 4, -4)
    ends = draw.integers(0, 15, (2, 60))
    pairs = np.stack([2 * ends[0], 2 * ends[1] + mixed])  # those of links are unlike, or alike
    edges = np.unique(np.concatenate([pairs, pairs[::-1]], axis=1), axis=1)
    view, plain = type_view(friends(edges, features), "person"), check_graph(features, edges)
    assert view.provenance.sha256 == plain.provenance.sha256
    assert (view.relations, view.path_columns, view.link_columns) == (None, None, None)
    for settings in ({"n_models": 2}, {"batch_size": 7}, {"edge_weights": "computed", "hops": 3}):
        one, other = (small(**settings).fit(graph) for graph in (view, plain))
        assert one.token_names == other.token_names
        np.testing.assert_array_equal(one.embedding_, other.embedding_)
    again = type_view(friends(edges, features), "person", fitted=(friends(edges, features), view))
    assert again.provenance.sha256 == view.provenance.sha256


def test_a_directed_relation_has_paths_both_ways() -> None:
    edges = np.array([[0, 0, 1, 2], [1, 2, 3, 3]])
    features = np.eye(4, dtype=np.float32)
    view = type_view(friends(edges, features), "person")
    assert view.relation_names
    assert view.path_columns is not None
    assert len(view.path_columns.titles) > 2


def test_hops_of_a_link_table_that_leads_to_a_type_in_two_ways_have_different_titles() -> None:
    banks = NodeTable("bank", np.arange(3), np.eye(3, dtype=np.float32))
    rows, ends = np.arange(2), {"from": np.array([0, 1]), "to": np.array([1, 2])}
    transfers = NodeTable("transfer", rows, np.zeros((2, 0), np.float32), has_ids=False)
    relations = tuple(
        Relation(f"transfer.{name}", "transfer", "bank", np.stack([rows, one])) for name, one in ends.items()
    )
    graph = RelationalGraph(
        {"bank": banks, "transfer": transfers}, relations, link_types=frozenset({"transfer"})
    )
    titles = [hop.title for hop in hops_from(graph, "bank")]
    assert titles == ["bank via transfer (from → to)", "bank via transfer (to → from)"]
    both_ways = [hop.title for hop in hops_from(friends(np.array([[0], [1]]), np.eye(2)), "person")]
    assert len({*both_ways}) == 2
