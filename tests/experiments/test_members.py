from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from h3gnn import H3GNN, Graph
from h3gnn.experiments.report_data import best_members, carried_by, collect_findings, member_columns, run_log
from h3gnn.experiments.scoring import Splits, probe_predictions
from h3gnn.report.findings import (
    RAW,
    TRAINED,
    UNTRAINED,
    BestMember,
    Findings,
    RepresentationScores,
    Scoreboard,
)
from h3gnn.training.history import History
from tests.known import known

COMMITTEE: dict[str, Any] = {
    "epochs": 4, "channels": 8, "heads": 2, "device": "cpu", "precision": "float32",
    "objective": ("teacher", "neighbours", "edges"), "n_models": 5, "edge_weights": "fixed",
}  # fmt: skip
WIDTH = 4 * 8
OWN = {
    "teacher": slice(0, 2 * WIDTH),
    "neighbours": slice(2 * WIDTH, 4 * WIDTH),
    "edges": slice(4 * WIDTH, 5 * WIDTH),
}


@pytest.fixture(scope="module")
def fitted(small_mixed: Graph) -> H3GNN:
    return H3GNN.from_settings(COMMITTEE).fit(small_mixed)


@pytest.fixture(scope="module")
def found(fitted: H3GNN) -> Findings:
    return collect_findings(fitted)


def test_each_member_has_its_own_columns(fitted: H3GNN) -> None:
    assert fitted.members_ == ["teacher", "teacher", "neighbours", "neighbours", "edges"]
    columns = member_columns(fitted)
    assert list(columns) == list(OWN)
    for name, own in OWN.items():
        np.testing.assert_array_equal(columns[name], fitted.embedding_[:, own])


def test_each_member_is_scored_beside_the_whole(fitted: H3GNN, found: Findings) -> None:
    assert found.scores is not None
    rows = {row.representation: row for row in found.scores.rows}
    assert list(rows) == [RAW, UNTRAINED, TRAINED, "H3GNN: teacher", "H3GNN: neighbours", "H3GNN: edges"]
    for name, own in OWN.items():
        accuracy = probe_predictions(fitted.embedding_[:, own], Splits.of(fitted.graph_)).accuracy
        np.testing.assert_array_equal(rows[f"H3GNN: {name}"].probe, accuracy)
    assert found.scores.protocol.endswith("H3GNN: … uses the columns of that member alone.")
    assert [one.class_name for one in found.scores.best_members] == list(found.scores.class_names)
    assert set(found.embeddings) == {RAW, UNTRAINED, TRAINED}


def test_the_best_member_of_a_class_and_its_lead() -> None:
    by_class = {
        TRAINED: [0.9, 0.7, np.nan],
        "H3GNN: teacher": [0.8, 0.5, np.nan],
        "H3GNN: edges": [0.5, 0.5, np.nan],
        "H3GNN: neighbours": [0.6, 0.1, np.nan],
    }
    rows = tuple(RepresentationScores(name, None, {}, np.array(shares)) for name, shares in by_class.items())
    scores = Scoreboard(rows, "", class_names=("a", "b", "c"), class_counts=np.array([10, 20, 0]))
    first, second = best_members(scores, ["teacher", "edges", "neighbours"])  # no node of class c is tested
    assert first.margin == pytest.approx(0.2)
    assert replace(first, margin=0.0) == BestMember("a", 10, ("teacher",), 0.8, 0.0, 0.9)
    assert second == BestMember("b", 20, ("teacher", "edges"), 0.5, 0.0, 0.7)


def test_members_carry_nodes_that_they_mostly_classify_correctly() -> None:
    labels = torch.tensor([0, 0, 0, 0, 0, 0, -1])
    test = torch.tensor([[1, 1], [1, 0], [0, 1], [1, 1], [0, 0], [1, 1], [1, 1]], dtype=torch.bool)
    splits = Splits(labels, ~test, ~test, test)
    predicted = {  # [splits, nodes]; 0 is right
        "teacher": np.array([[0, 0, 1, 0, 0, 1, 0], [0, 1, 0, 1, 0, 1, 0]]),
        "edges": np.array([[0, 1, 1, 0, 0, 1, 0], [0, 0, 1, 0, 0, 1, 0]]),
        "neighbours": np.array([[0, 1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1, 0]]),
    }
    carried = carried_by(predicted, splits)
    names = [[*carried.names, None][value] for value in carried.values]
    assert names == [
        "all members",
        "teacher alone",  # tested in the first split only
        "several members",  # in the second only: teacher and neighbours
        "several members",  # the teacher is right in one split of two, which is not more than half
        None,  # never tested
        "no member",  # one right answer in two is not enough
        None,  # no known class
    ]


def test_nodes_can_be_coloured_by_member(fitted: H3GNN, found: Findings) -> None:
    assert [one.key for one in found.categories][-2:] == ["split", "carried"]
    tested = Splits.of(fitted.graph_).tested.any(axis=0)
    carried = found.category("carried")
    np.testing.assert_array_equal(known(carried).values >= 0, tested)
    keys = [one.key for one in found.measures if one.key.startswith("difficulty")]
    assert keys == ["difficulty", *(f"difficulty_{name}" for name in OWN)]


def test_difficulty_for_a_member_is_a_percentile_over_its_models(fitted: H3GNN, found: Findings) -> None:
    difficulty = fitted.history_.difficulty
    assert difficulty is not None
    means = {
        "teacher": difficulty[:2].mean(dim=0),
        "neighbours": difficulty[2:4].mean(dim=0),
        "edges": difficulty[4],
    }
    each = []
    for name, mean in means.items():
        wanted = [100 * (mean <= one).float().mean().item() for one in mean]
        measure = found.measure(f"difficulty_{name}")
        np.testing.assert_allclose(known(measure).values, wanted, rtol=1e-5)
        each.append(known(measure).values)
    whole = found.measure("difficulty")
    np.testing.assert_allclose(known(whole).values, np.mean(each, axis=0))


def test_the_share_of_a_member_is_its_part_of_the_ranks(fitted: H3GNN, found: Findings) -> None:
    ranks = {}
    for name, own in OWN.items():
        rows = fitted.embedding_[:, own].astype(np.float64)
        singular = np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False)
        singular = singular[singular > 1e-6 * singular[0]]
        part = singular / singular.sum()
        ranks[name] = np.exp(-(part * np.log(part)).sum())
    members = {one.name: one for one in found.run.members}
    assert {name: one.models for name, one in members.items()} == {
        "teacher": (0, 1), "neighbours": (2, 3), "edges": (4,)
    }  # fmt: skip
    for name, rank in ranks.items():
        assert members[name].rank == pytest.approx(rank, rel=1e-3)
        assert members[name].share == pytest.approx(rank / sum(ranks.values()), rel=1e-3)
        loss = fitted.history_["loss"][-1, list(members[name].models)].mean()
        assert members[name].loss == pytest.approx(loss)


def test_without_labels_members_have_a_silhouette_and_a_difficulty(small_mixed: Graph) -> None:
    bare = replace(small_mixed, labels=None, class_names=(), train_mask=None, val_mask=None, test_mask=None)
    found = collect_findings(H3GNN.from_settings(COMMITTEE).fit(bare))
    assert [row.representation for row in known(found.scores).rows][3:] == [f"H3GNN: {name}" for name in OWN]
    assert known(found.scores).best_members == ()
    assert [one.key for one in found.categories] == ["cluster"]
    assert found.measure("difficulty_edges") is not None


def test_an_untrained_committee_has_no_loss(small_mixed: Graph) -> None:
    log = run_log(H3GNN.from_settings({**COMMITTEE, "epochs": 0}).fit(small_mixed))
    assert np.isnan([one.loss for one in log.members]).all()


@pytest.mark.parametrize("objective", ["edges", ("teacher",), ("teacher", "edges")])
def test_models_of_one_objective_are_no_committee(
    small_mixed: Graph, objective: str | tuple[str, ...]
) -> None:
    models = 1 if objective == ("teacher", "edges") else 2  # then the first takes part alone
    found = collect_findings(
        H3GNN.from_settings({**COMMITTEE, "objective": objective, "n_models": models}).fit(small_mixed)
    )
    assert found.scores is not None
    assert [row.representation for row in found.scores.rows] == [RAW, UNTRAINED, TRAINED]
    assert "member" not in found.scores.protocol
    assert (found.scores.best_members, found.run.members) == ((), ())
    assert found.category("carried") is None
    assert [one.title for one in found.measures if "difficulty" in one.key] == ["difficulty, last epoch"]


def test_a_collapse_names_the_member(fitted: H3GNN) -> None:
    model = H3GNN.from_settings(COMMITTEE)
    model.__dict__.update(fitted.__dict__)
    ranks = np.array([[50.0] * 5, [49.0, 49.0, 49.0, 49.0, 1.5]])
    model.history_ = History({"loss": ranks, "effective_rank": ranks})
    assert run_log(model).collapsed.startswith("Model 4 (edges): the representation collapsed")


def test_edges_that_are_not_learned_have_not_changed(small_mixed: Graph, found: Findings) -> None:
    assert found.edge_changes == ()
    np.testing.assert_array_equal(known(found.neighbors).weight, known(found.neighbors).start)
    computed = H3GNN.from_settings({**COMMITTEE, "edge_weights": "computed", "objective": "teacher"}).fit(
        small_mixed
    )
    assert collect_findings(computed).neighbors is None  # their weights are not kept
