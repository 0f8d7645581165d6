"""Text and HTML representations in notebooks; names are escaped."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from h3gnn import H3GNN, Graph
from h3gnn.evaluation.results import RepeatedScore, Result
from h3gnn.experiments.compare import Comparison
from h3gnn.graphs.provenance import Repair
from h3gnn.training.history import History

MARKUP = "<script>alert(1)</script>"


def test_representation_of_a_graph(path_graph: Graph) -> None:
    assert repr(path_graph) == "Graph(arrays: 5 nodes, 8 edges, 5 features, 2 classes, 5 labelled)"
    named = replace(
        path_graph, provenance=replace(path_graph.provenance, source=MARKUP, repairs=(Repair("x", MARKUP),))
    )
    shown = named._repr_html_()
    assert MARKUP not in shown
    assert "<th>edges</th><td>8</td>" in shown


def test_representation_of_a_history(path_graph: Graph) -> None:
    model = H3GNN.from_preset("single", epochs=3, channels=8, heads=2, n_models=2, device="cpu").fit(
        path_graph
    )
    frame = pd.DataFrame(model.history_)
    pd.testing.assert_frame_equal(frame, model.history_.to_frame())
    assert frame.shape[0] == 6
    assert list(frame.columns[:4]) == ["epoch", "model", "loss", "masked"]
    row = frame[(frame.epoch == 2) & (frame.model == 1)].iloc[0]
    assert row.loss == model.history_["loss"][2, 1]
    assert repr(model.history_).startswith("History(3 epochs, 2 models: loss, masked, ")
    assert "<table" in model.history_._repr_html_()
    assert repr(History()) == "History(no epochs)"
    assert History()._repr_html_() == "<p>History(no epochs)</p>"
    assert History().to_frame().empty


def test_representation_of_results() -> None:
    scores = RepeatedScore([[0.9, 0.8]])
    result = Result(
        MARKUP,
        "g",
        "0",
        "validation",
        "last",
        {},
        [0],
        {},
        None,
        "cpu",
        1.0,
        scores,
        scores,
        None,
        scores,
        [],
    )
    assert repr(result) == f"Result({MARKUP} on g: accuracy 85.0 ± 5.0 %)"
    assert MARKUP not in result._repr_html_()
    assert "<th>accuracy</th><td>85.0 ± 5.0 %</td>" in result._repr_html_()
    found = Comparison(
        {"raw": result, "gcn": replace(result, method="GCN", probe=RepeatedScore([[0.5, 0.5]]))}, 0.4
    )
    assert MARKUP not in found._repr_html_()
    assert found._repr_html_().index("85.0 ± 5.0 %") < found._repr_html_().index("50.0 ± 0.0 %")
    assert np.isclose(found.score("gcn").mean, 0.5)
    assert repr(found).startswith("Comparison(On this graph")
