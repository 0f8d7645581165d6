"""Embeddings handed over while training: they are right, and taking them changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from h3gnn.errors import InputError
from h3gnn.estimator import H3GNN
from h3gnn.graphs.graph import Graph
from h3gnn.storage.checkpoint_file import Checkpoints
from h3gnn.training.loop import Snapshots

ARGUMENTS: dict[str, Any] = {
    "channels": 8,
    "heads": 2,
    "epochs": 8,
    "n_models": 2,
    "batch_norm": True,
    "token_dropout": 0.2,
    "device": "cpu",
    "precision": "bfloat16",
}


def test_they_are_the_embedding_and_change_no_bit(small_mixed: Graph) -> None:
    taken: dict[int, Tensor] = {}

    def keep(epoch: int, models: range, embedding: Tensor) -> None:
        assert models == range(2)
        taken[epoch] = embedding

    without = H3GNN.from_preset("single", **ARGUMENTS).fit(small_mixed)
    watched = H3GNN.from_preset("single", **ARGUMENTS).fit(small_mixed, snapshots=Snapshots((0, 3, 8), keep))
    assert list(taken) == [0, 3, 8]
    np.testing.assert_array_equal(watched.embedding_, without.embedding_)
    for name in without.history_.names:
        np.testing.assert_array_equal(watched.history_[name], without.history_[name])
    np.testing.assert_allclose(taken[8].numpy(), watched.embedding_, atol=1e-6)
    untrained = H3GNN.from_preset("single", **{**ARGUMENTS, "epochs": 0}).fit(small_mixed)
    np.testing.assert_allclose(taken[0].numpy(), untrained.embedding_, atol=1e-6)
    assert taken[3].dtype == torch.float32
    assert not torch.allclose(taken[3], taken[8], atol=1e-3)


def test_groups_say_which_models_they_are(small_mixed: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("h3gnn.training.models.models_at_once", lambda *_, **__: 2)
    parts: list[tuple[int, range, Tensor]] = []
    snapshots = Snapshots((8,), lambda *part: parts.append(part))
    model = H3GNN.from_preset("single", **{**ARGUMENTS, "n_models": 3}).fit(small_mixed, snapshots=snapshots)
    assert model.history_.engine["models_at_once"] == 2
    assert [(epoch, models) for epoch, models, _ in parts] == [(8, range(2)), (8, range(2, 3))]
    joined = torch.cat([part for _, _, part in parts], dim=1)
    np.testing.assert_allclose(joined.numpy(), model.embedding_, atol=1e-5)


def test_what_has_no_snapshots_says_so(small_mixed: Graph, tmp_path: object) -> None:
    snapshots = Snapshots((1,), lambda *part: None)
    with pytest.raises(InputError, match="batch_size"):
        H3GNN.from_preset("single", **ARGUMENTS, batch_size=32, edge_weights="fixed").fit(
            small_mixed, snapshots=snapshots
        )
    with pytest.raises(InputError, match="checkpoints"):
        H3GNN.from_preset("single", **ARGUMENTS).fit(
            small_mixed, snapshots=snapshots, checkpoints=Checkpoints(str(tmp_path))
        )
