from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from h3gnn.estimator import H3GNN
from h3gnn.experiments.spaces import ConfigurationStack
from h3gnn.graphs.graph import Graph
from h3gnn.training.models import derive_seeds

CPU = torch.device("cpu")
OWN = [
    {"mask_ratio": 0.5, "momentum": 0.9},
    {"mask_ratio": 0.7, "momentum": 0.99, "token_dropout": 0.2},
    {"mask_ratio": 0.8, "hard_fraction": 0.1},
]


def params(**changes: Any) -> dict[str, Any]:
    small: dict[str, Any] = {
        "channels": 8,
        "schedule": "constant",
        "precision": "float32",
        "batch_norm": True,
    }
    given: dict[str, Any] = H3GNN.from_preset("single", **(small | changes)).get_settings()
    return given


def test_a_stack_of_one_configuration_is_what_the_estimator_trains(small_mixed: Graph) -> None:
    model = H3GNN.from_preset("single", **params(epochs=15, n_models=2)).fit(small_mixed)
    stack = ConfigurationStack(small_mixed, params(), [{}, {}], derive_seeds(0, 2), CPU)
    stack.train(15)
    joined = stack.embeddings().transpose(0, 1).flatten(1).numpy()
    np.testing.assert_allclose(joined, model.embedding_, atol=1e-5)


def test_looking_does_not_disturb(small_mixed: Graph) -> None:
    seen, unseen = (ConfigurationStack(small_mixed, params(), OWN, [1, 2, 3], CPU) for _ in range(2))
    for epoch in (3, 6, 15):
        seen.train(epoch)
        seen.embeddings()
    unseen.train(15)
    assert torch.equal(seen.embeddings(), unseen.embeddings())


@pytest.mark.parametrize("mask", ["probability", "difficulty"])
@pytest.mark.parametrize("objective", ["teacher", "features"])
@pytest.mark.parametrize("last", [0, 1])  # one that drops no token beside one that does, and the other
def test_models_that_are_kept_go_on_as_if_nothing_happened(
    small_mixed: Graph, mask: str, objective: str, last: int
) -> None:
    shape = params(mask=mask, objective=objective)
    whole = ConfigurationStack(small_mixed, shape, OWN, [1, 2, 3], CPU)
    whole.train(20)
    thinned = ConfigurationStack(small_mixed, shape, OWN, [1, 2, 3], CPU)
    thinned.train(8)
    thinned.keep([last, 2])
    thinned.train(14)
    thinned.keep([last])
    thinned.train(20)
    assert thinned.models == [last]
    torch.testing.assert_close(thinned.embeddings()[0], whole.embeddings()[last], atol=1e-4, rtol=1e-4)
