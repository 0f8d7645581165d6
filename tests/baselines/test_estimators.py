"""Systems as estimators: rejected input, class names and published settings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from h3gnn import baselines
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.synthetic import mixed_graph
from tests.rejects import rejects


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("GREET", {"epochs": -3}),
        ("GREET", {"epochs": 2.5}),
        ("GREET", {"width": 0}),
        ("GREET", {"scale_features": "foo"}),
        ("GREET", {"margins": 3}),
        ("GREET", {"random_state": "a"}),
        ("MLP", {"dropout": 1.5}),
        ("MLP", {"dropout": 1.0}),
        ("MLP", {"learning_rate": "x"}),
    ],
)
def test_invalid_settings_are_rejected(small_mixed: Graph, name: str, settings: dict[str, Any]) -> None:
    with rejects("invalid-setting") as error:
        getattr(baselines, name)(**settings).fit(small_mixed)
    assert next(iter(settings)) in error.message


def test_classes_keep_the_users_names(small_mixed: Graph) -> None:
    assert small_mixed.labels is not None
    numbers = small_mixed.labels.numpy() * 10
    model = baselines.MLP(epochs=20).fit(small_mixed, numbers)
    assert set(model.predict()) <= set(numbers)
    assert model.score(small_mixed, numbers) > 0.5
    words = np.array(["no", "yes"], dtype=object)[small_mixed.labels.numpy() % 2]
    words[:5] = None
    assert list(baselines.MLP(epochs=2).fit(small_mixed, words).classes_) == ["no", "yes"]
    own = baselines.MLP(epochs=2).fit(small_mixed)
    assert list(own.classes_) == list(small_mixed.class_names)
    with rejects("label-count"):
        baselines.MLP().fit(small_mixed, numbers[:50])


def test_another_graph_than_the_fitted_one_is_rejected(small_mixed: Graph) -> None:
    with pytest.raises(NotFittedError):
        baselines.MLP().predict()
    model = baselines.MLP(epochs=2).fit(small_mixed)
    assert len(model.predict(small_mixed)) == 100
    embedded = baselines.DGI(epochs=2, width=4).fit(small_mixed)
    np.testing.assert_array_equal(embedded.transform(small_mixed), embedded.embedding_)
    for one in (model.predict, embedded.transform):
        with rejects("not-the-fitted-graph"):
            one(mixed_graph(60))


def test_published_settings_of_a_graph() -> None:
    assert baselines.GREET.published("Cora").get_params()["epochs"] == 400
    assert baselines.GREET.published().get_params()["scale_features"] == "none"
    with rejects("no-published-settings"):
        baselines.GREET.published("nosuch")
    assert "Node2Vec" in dir(baselines)
    assert "temperature" in (baselines.GREET.__doc__ or "")
