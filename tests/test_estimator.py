from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch_geometric.data import Data

from h3gnn import (
    H3GNN,
    CollapseWarning,
    EncoderConfig,
    Graph,
    GraphError,
    InputError,
    MaskingConfig,
    NodeClassifier,
)
from h3gnn.graphs.checks import check_graph
from tests.rejects import rejects

QUICK: dict[str, Any] = {"epochs": 3, "channels": 8, "heads": 2, "device": "cpu", "precision": "float32"}


def quick(**settings: Any) -> H3GNN:
    return H3GNN.from_preset("single", **{**QUICK, **settings})


@pytest.fixture(scope="module")
def fitted(small_mixed: Graph) -> H3GNN:
    return quick().fit(small_mixed)


@pytest.fixture(scope="module")
def fitted_path() -> H3GNN:
    """A model of the path graph whose edge weights have moved."""
    edges = torch.tensor([[0, 1, 1, 2, 2, 3, 3, 4], [1, 0, 2, 1, 3, 2, 4, 3]])
    ids = np.array(["a", "b", "c", "d", "e"], dtype=object)
    return quick(epochs=30, learning_rate=0.05).fit(check_graph(torch.eye(5), edges, node_ids=ids))


@parametrize_with_checks([H3GNN.from_preset("single", epochs=2)])  # type: ignore[untyped-decorator]
def test_scikit_learn_contract(estimator: H3GNN, check: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CollapseWarning)  # some checks fit noise of three rows
        check(estimator)


def data_of(graph: Graph) -> Data:
    return Data(x=graph.dense_features(), edge_index=graph.edge_index)


def test_all_input_formats_give_the_same_embedding(small_mixed: Graph) -> None:
    features, edges = small_mixed.dense_features().numpy(), small_mixed.edge_index.numpy()
    adjacency = sp.coo_matrix((np.ones(edges.shape[1]), edges), shape=(100, 100))
    network = nx.Graph()
    network.add_nodes_from((i, {"x": features[i].tolist()}) for i in range(100))
    network.add_edges_from(edges.T.tolist())
    # a generated graph keeps its order of nodes, arrays are trained in the canonical one
    arrays = replace(small_mixed, provenance=replace(small_mixed.provenance, kind="arrays"))
    wanted = quick().fit_transform(arrays)
    assert wanted.shape == (100, 32)
    ways: list[tuple[Any, Any]] = [
        (data_of(small_mixed), None),
        (features, edges),
        (sp.csr_matrix(features), torch.from_numpy(edges)),
        (features, adjacency.tocsr()),
        (network, None),
    ]
    for x, edge_index in ways:
        embedding = quick().fit_transform(x, edge_index=edge_index)
        np.testing.assert_allclose(embedding, wanted, atol=1e-5)
    assert quick().fit_transform(adjacency).shape == (100, 32)  # structural features


def test_the_first_of_several_models_equals_a_single_one(small_mixed: Graph) -> None:
    options = {"token_dropout": 0.3, "attention_dropout": 0.3, "epochs": 10}
    one = quick(**options).fit_transform(small_mixed)
    three = quick(**options, n_models=3).fit_transform(small_mixed)
    assert three.shape[1] == 3 * one.shape[1]
    np.testing.assert_allclose(three[:, : one.shape[1]], one, atol=1e-4)
    assert not np.allclose(three[:, : one.shape[1]], three[:, one.shape[1] : 2 * one.shape[1]])


@pytest.mark.parametrize(
    "setting",
    [
        {"mask": "random"},
        {"mask": "difficulty"},
        {"objective": "features", "mask": "random"},
        {"objective": "features", "mask": "random", "fusion": "mlp"},
        {"teacher_mode": "train", "token_dropout": 0.8, "attention_dropout": 0.8},
        {"self_loops": True, "undirected": False, "normalize": True, "edge_init": 0.73},
        {"norm": "pre", "output": "first", "hops": 3, "batch_norm": True},
        {"schedule": "constant", "weight_decay": 0.008, "hidden_channels": 16, "momentum": 0.999},
        {"mask_ratio": 0.9, "hard_fraction": 0.9, "channels": 128},
    ],
    ids=str,
)
def test_every_setting_trains(small_mixed: Graph, setting: dict[str, Any]) -> None:
    model = quick(mask_warmup=1, **setting).fit(small_mixed)
    assert np.isfinite(model.embedding_).all()
    assert len(model.history_) == 3
    assert np.isfinite(model.history_["loss"]).all()


def test_training_lowers_the_loss_and_is_recorded(small_mixed: Graph) -> None:
    model = H3GNN.from_preset("single", channels=16, epochs=60, device="cpu").fit(small_mixed)
    history = model.history_
    assert history["loss"][-10:].mean() < history["loss"][:10].mean()
    low, middle, high = (history.measured(f"difficulty_q{q}")[1] for q in (0, 50, 100))
    assert (low <= middle).all()
    assert (middle <= high).all()
    assert len(middle) >= 20
    masked = int(100 * model.get_settings()["mask_ratio"])
    assert history["masked"][0] == masked  # warm-up: exactly M
    assert history.last("teacher_distance") > 0
    assert 1 < history.last("effective_rank") <= 100


def test_a_new_edge_takes_its_initial_weight(fitted_path: H3GNN) -> None:
    model, path = fitted_path, fitted_path.graph_
    learned = torch.sigmoid(model.encoder_.edges.logit).detach()
    assert not torch.allclose(learned, model.support_.start, atol=1e-3)

    # A new edge 0 – 4 beside the known ones; the weights of the new graph worked out by hand.
    edges = torch.cat([path.edge_index, torch.tensor([[0, 4], [4, 0]])], dim=1)
    ring = check_graph(path.features, edges, node_ids=path.node_ids)
    support = model.inference_.preprocessing.support(ring)
    weights = dict(zip(pairs_of(model.support_), learned[0].tolist(), strict=True))
    starts = zip(pairs_of(support), support.start.tolist(), strict=True)
    by_hand = torch.tensor([[weights.get(pair, start) for pair, start in starts]])
    wanted = model.inference_.embed_with(ring, support, by_hand)
    np.testing.assert_allclose(model.transform(ring), wanted, atol=1e-6)
    assert not np.allclose(model.transform(ring), model.embedding_)


def pairs_of(support: Any) -> list[tuple[int, int]]:
    return list(zip(support.pattern.rows.tolist(), support.pattern.cols.tolist(), strict=True))


def test_other_nodes_at_the_same_positions_take_initial_edge_weights(path_graph: Graph) -> None:
    model = quick(epochs=30, learning_rate=0.05).fit(path_graph)
    others = check_graph(path_graph.features.flip(0) * 2, path_graph.edge_index)
    support = model.inference_.preprocessing.support(others)
    wanted = model.inference_.embed_with(others, support, (support.start * support.factor)[None])
    np.testing.assert_allclose(model.transform(others), wanted, atol=1e-6)


def test_nodes_are_matched_by_id(fitted_path: H3GNN) -> None:
    path, order = fitted_path.graph_, torch.tensor([4, 2, 0, 1, 3])
    edges, ids = torch.argsort(order)[path.edge_index], path.node_ids[order.numpy()]
    shuffled = check_graph(path.features[order], edges, node_ids=ids)
    wanted = fitted_path.embedding_[order.numpy()]
    np.testing.assert_allclose(fitted_path.transform(shuffled), wanted, atol=1e-5)


def test_a_table_gets_neighbours_and_new_rows_receive_from_the_fitted_ones() -> None:
    rows = np.random.default_rng(0).normal(size=(40, 5))
    model = quick(n_neighbors=3).fit(rows)
    assert model.graph_.num_edges == 40 * 3
    assert model.graph_.provenance.repairs[0].code == "nearest-neighbor-edges"
    np.testing.assert_array_equal(model.transform(rows[10:20]), model.embedding_[10:20])
    new = np.random.default_rng(1).normal(size=(4, 5))
    together = model.transform(new)
    np.testing.assert_allclose(together[2:3], model.transform(new[2:3]), atol=1e-6)
    mixed = model.transform(np.concatenate([rows[:2], new[:1]]))
    np.testing.assert_array_equal(mixed[:2], model.embedding_[:2])
    np.testing.assert_allclose(mixed[2], together[0], atol=1e-6)


def test_another_number_of_features_is_rejected(fitted: H3GNN, path_graph: Graph) -> None:
    with rejects("feature-count-differs", GraphError):
        fitted.transform(path_graph)


def test_a_second_fit_replaces_the_first(small_mixed: Graph, path_graph: Graph) -> None:
    model = quick().fit(small_mixed).fit(path_graph)
    np.testing.assert_array_equal(model.embedding_, quick().fit_transform(path_graph))


def test_fit_does_not_change_its_input(small_mixed: Graph) -> None:
    data = data_of(small_mixed)
    before = {name: value.clone() for name, value in data.to_dict().items()}
    model = quick().fit(data)
    with pytest.raises(ValueError, match="read-only"):
        model.embedding_[:] = 0
    for name, value in before.items():
        assert torch.equal(value, data[name])


def test_attention_sums_to_one(path_graph: Graph, fitted_path: H3GNN) -> None:
    attention = fitted_path.attention()
    assert attention.shape == (1, 5, 4, 4)
    np.testing.assert_allclose(attention.sum(axis=-1), 1, atol=1e-5)
    with rejects("no-attention"):
        quick(fusion="mlp").fit(path_graph).attention()


def test_collapse_is_reported(small_mixed: Graph) -> None:
    # a weight decay that outweighs the loss shrinks all weights to zero
    model = quick(epochs=150, learning_rate=0.05, weight_decay=5.0, norm="pre")
    with pytest.warns(CollapseWarning, match=r"at epoch \d+ its effective rank fell to"):
        model.fit(small_mixed)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"channels": 10, "heads": 4}, "channels \\(10\\) must be a multiple of heads"),
        ({"mask_ratio": 1.0}, "mask_ratio must be in \\[0, 1\\)"),
        ({"mask": "hard"}, "mask must be one of 'random', 'difficulty', 'probability'"),
        ({"hops": 0}, "hops must be an integer of at least 1"),
        ({"edge_init": "constant"}, "edge_init must be 'normalized' or a number"),
        ({"device": "abacus"}, "device 'abacus'"),
    ],
)
def test_invalid_arguments_are_named(path_graph: Graph, setting: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        quick(**setting).fit(path_graph)


def test_presets() -> None:
    paper = H3GNN.from_preset("paper", epochs=7)
    wanted = {"norm": "residual-post", "mask_token": "normal", "self_loops": True, "epochs": 7}
    assert wanted.items() <= paper.get_settings().items()
    changed = H3GNN.from_preset("paper", heads=2, encoder__norm="pre").get_settings()
    assert {"heads": 2, "norm": "pre", "mask_token": "normal"}.items() <= changed.items()
    with rejects("unknown-preset"):
        H3GNN.from_preset("best")
    assert clone(paper).get_params() == paper.get_params()


@pytest.mark.parametrize("nodes", [1, 4])
def test_graphs_without_edges_are_embedded(nodes: int) -> None:
    isolated = check_graph(torch.rand(nodes, 3), torch.empty(2, 0, dtype=torch.long))
    embedding = quick().fit_transform(isolated)
    assert embedding.shape == (nodes, 32)
    assert np.isfinite(embedding).all()


def test_zero_epochs_is_the_untrained_encoder(path_graph: Graph) -> None:
    model = quick(epochs=0).fit(path_graph)
    assert len(model.history_) == 0
    assert model.embedding_.shape == (5, 32)


def test_groups_of_settings_work_with_scikit_learn() -> None:
    model = H3GNN(encoder=EncoderConfig(heads=2), masking__mask="random")
    assert model.get_params()["encoder__heads"] == 2
    assert model.get_params()["target__loss"] == "squared"
    copy = clone(model).set_params(encoder__norm="pre", encoder__heads=8)
    assert copy.encoder == EncoderConfig(heads=8, norm="pre")
    assert model.encoder == EncoderConfig(heads=2)
    assert copy.masking == MaskingConfig(mask="random")
    assert H3GNN.from_settings(copy.get_settings()).get_params() == copy.get_params()
    for wrong in ({"encoder__hads": 2}, {"target__heads": 2}):
        with rejects("unknown-setting"):
            model.set_params(**wrong)
    with rejects("value-invalid"):
        H3GNN(encoder="pre").get_settings()


def test_a_grid_search_varies_settings_of_a_group(small_mixed: Graph) -> None:
    assert small_mixed.labels is not None
    nodes = NodeClassifier(H3GNN.from_settings(QUICK | {"n_models": 1, "epochs": 0}), small_mixed)
    grid = {"embedder__encoder__heads": [1, 4]}
    found = GridSearchCV(nodes, grid, cv=2).fit(np.arange(100), small_mixed.labels.numpy())
    assert found.best_params_["embedder__encoder__heads"] in (1, 4)


def test_former_names_work_with_a_warning() -> None:
    with pytest.warns(FutureWarning, match="use encoder__heads=") as caught:
        model = H3GNN(heads=2, epochs=3)
    assert caught[0].filename == __file__
    assert (model.encoder, model.epochs) == (EncoderConfig(heads=2), 3)
    with pytest.warns(FutureWarning, match="use num_neighbors="):
        assert H3GNN(fan_out=[4, 2]).num_neighbors == [4, 2]
    with pytest.warns(FutureWarning, match="use masking__hard_fraction="):
        assert model.set_params(exploit_ratio=0.1).masking == MaskingConfig(hard_fraction=0.1)
    with pytest.raises(TypeError, match="nonsense"):
        H3GNN(nonsense=1)


def test_assigning_a_setting_of_a_group_takes_effect_with_a_warning() -> None:
    model = H3GNN(encoder=EncoderConfig(norm="pre"))
    with pytest.warns(FutureWarning, match="use encoder__heads=") as caught:
        model.heads = 2
    assert caught[0].filename == __file__
    with pytest.warns(FutureWarning, match="use num_neighbors="):
        model.fan_out = [4, 2]
    model.encoder__activation = "relu"
    model.epochs = 7
    assert model.encoder == EncoderConfig(norm="pre", heads=2, activation="relu")
    assert (model.num_neighbors, model.epochs) == ([4, 2], 7)


def test_a_second_fit_that_fails_keeps_the_first(
    small_mixed: Graph, path_graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = quick().fit(small_mixed)
    before, wanted = dict(vars(model)), model.transform(small_mixed)

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr("h3gnn.estimator.train_models", broken)
    for other in (path_graph, np.ones((6, 2))):
        with pytest.raises(RuntimeError, match="broken"):
            model.fit(other)
        assert {name: id(value) for name, value in vars(model).items()} == {
            name: id(value) for name, value in before.items()
        }
    np.testing.assert_array_equal(model.transform(small_mixed), wanted)


def test_a_model_saved_before_settings_were_grouped_loads_to_its_embedding() -> None:
    folder = Path(__file__).parent / "data" / "old-run"
    model = H3GNN.load(folder)
    assert "lr_warmup" in json.loads((folder / "model.json").read_text())["params"]
    assert model.get_settings()["heads"] == 2
    np.testing.assert_allclose(model.embedding_, np.load(folder / "embedding.npy"), atol=2e-5)


def test_repr_shows_changed_settings_by_group() -> None:
    assert repr(H3GNN()) == "H3GNN()"
    assert repr(H3GNN(epochs=5, channels=8)) == "H3GNN(channels=8, epochs=5)"
    shown = repr(H3GNN(epochs=5, channels=8, encoder__heads=2, masking__mask="random", device="cpu"))
    assert "    encoder=EncoderConfig(heads=2)," in shown.splitlines()
    assert eval(shown).get_settings()["mask"] == "random"
