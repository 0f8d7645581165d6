"""The paper's equations and their variants: training, storing and resuming."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import variants as measured
from h3gnn import H3GNN, Checkpoints, Graph, preset
from h3gnn.encoder.support import START_BOUNDS
from h3gnn.errors import TrainingStopped
from h3gnn.graphs.checks import check_graph
from h3gnn.settings import check_arguments
from tests.rejects import rejects

SMALL: dict[str, Any] = {"epochs": 4, "channels": 4, "heads": 2, "mask_warmup": 1, "device": "cpu"}


def of_preset(name: str) -> dict[str, Any]:
    """Return the settings of a preset with a small encoder."""
    return {**preset(name), **SMALL}


VARIANTS: dict[str, dict[str, Any]] = {
    "paper": {},
    "released": of_preset("released"),
    "later": of_preset("later"),
    "bounds": {"normalize": True, "edge_init": 0.5, "mask_size": "exact", "loss": "cosine"},
    "losses": {"loss": "scaled-cosine", "targets": "standardized", "fusion": "hierarchical", "output": "max"},
    "swaps": {"replace_rate": 0.5, "edge_weights": "computed", "min_layers": 2, "hops": 3},
}


def variant(**setting: Any) -> H3GNN:
    return H3GNN.from_preset("paper", **{**SMALL, **setting})


def test_the_variants_of_the_benchmark_are_valid() -> None:
    for settings in measured.VARIANTS.values():
        check_arguments(H3GNN.from_settings(settings).get_settings())
    changed = {name for change in measured.CHANGES.values() for name in change}
    assert changed >= {"loss", "replace_rate", "output", "fusion", "min_layers", "activation", "mask_size"}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_is_stacked_saved_and_resumed(small_mixed: Graph, tmp_path: Path, name: str) -> None:
    setting = VARIANTS[name]
    both = variant(**{**setting, "n_models": 2}).fit(small_mixed)
    assert np.isfinite(both.embedding_).all()
    alone = variant(**setting).fit(small_mixed)
    np.testing.assert_allclose(both.embedding_[:, : alone.embedding_.shape[1]], alone.embedding_, atol=1e-4)

    both.save(tmp_path / "model")
    np.testing.assert_array_equal(H3GNN.load(tmp_path / "model").embedding_, both.embedding_)

    def stop(epoch: int, recorder: object) -> None:
        if epoch == 1:
            raise TrainingStopped("stopped", 2)

    kept = Checkpoints(tmp_path / "kept", every=1)
    with pytest.raises(TrainingStopped):
        variant(**{**setting, "n_models": 2}).fit(
            small_mixed, checkpoints=kept, after_epoch_of=lambda _: stop
        )
    resumed = variant(**{**setting, "n_models": 2}).fit(small_mixed, checkpoints=kept)
    assert resumed.embedding_.tobytes() == both.embedding_.tobytes()


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_trains_in_batches(small_mixed: Graph, tmp_path: Path, name: str) -> None:
    in_batches = {**VARIANTS[name], "batch_size": 60, "edge_weights": "fixed"}
    model = variant(**in_batches).fit(small_mixed)
    assert np.isfinite(model.history_["loss"]).all()
    model.save(tmp_path)
    np.testing.assert_array_equal(H3GNN.load(tmp_path).embedding_, model.embedding_)


def test_free_weights_are_not_bounded() -> None:
    # two connected nodes: both entries of Ã are 1, which a sigmoid cannot reach
    pair = check_graph(torch.eye(2), torch.tensor([[0, 1], [1, 0]]))
    start = variant(self_loops=False, epochs=0).fit(pair)
    assert start.encoder_.edges.logit.tolist() == [[1.0, 1.0]]
    bounded = variant(self_loops=False, epochs=0, edge_weights="learned").fit(pair)
    torch.testing.assert_close(bounded.encoder_.edges.logit.sigmoid(), torch.full((1, 2), START_BOUNDS[1]))
    # Adam's first step is the learning rate, up or down
    moved = variant(self_loops=False, epochs=1, mask_ratio=0.5).fit(pair)
    steps = (moved.encoder_.edges.logit - 1).abs()
    torch.testing.assert_close(steps, torch.full((1, 2), moved.learning_rate), rtol=1e-2, atol=0)


def test_free_weights_may_turn_negative_and_are_carried_to_new_graphs(path_graph: Graph) -> None:
    model = variant(epochs=20, edge_rate=30.0, weight_decay=0.0).fit(path_graph)
    weights = model.encoder_.edges.logit.detach()
    assert weights.min() < 0
    edges = torch.cat([path_graph.edge_index, torch.tensor([[0, 4], [4, 0]])], dim=1)
    ring = check_graph(path_graph.features, edges)
    support, fitted = model.inference_.preprocessing.support(ring), model.support_.pattern
    dense = torch.full((5, 5), float("nan"))
    dense[support.pattern.rows, support.pattern.cols] = 1 / 3  # three neighbours, self-loop included
    dense[fitted.rows, fitted.cols] = weights[0]
    by_hand = dense[support.pattern.rows, support.pattern.cols][None]
    np.testing.assert_allclose(
        model.transform(ring), model.inference_.embed_with(ring, support, by_hand), atol=1e-6
    )


@pytest.mark.parametrize("kind", ["free", "learned"])
def test_learned_edge_weights_need_the_full_graph(path_graph: Graph, kind: str) -> None:
    with rejects("learned-edges-need-full-graph"):
        variant(edge_weights=kind, batch_size=2).fit(path_graph)


def test_free_weights_cannot_start_at_zero(path_graph: Graph) -> None:
    with rejects("edge-init-zero"):
        variant(edge_init=0.0).fit(path_graph)


def test_the_size_of_the_mask(small_mixed: Graph) -> None:
    options: dict[str, Any] = {"epochs": 12, "mask_ratio": 0.4, "hard_fraction": 1.0}
    masked = {
        size: variant(mask_size=size, **options).fit(small_mixed) for size in ("bounded", "exact", "free")
    }
    after = {size: model.history_["masked"].ravel()[1:] for size, model in masked.items()}
    assert set(after["exact"]) == {40}
    assert after["bounded"].min() >= 20
    assert after["free"].min() < 20  # with r = 1, p_v is R only for the most difficult node
