from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from h3gnn.answers.learning import EMBEDDING, HEADS, NEIGHBOURS, OWN, NodeInputs, NodeModel, labelled_folds
from h3gnn.answers.prediction import NodePredictor, check_labels, predict_nodes
from h3gnn.answers.scores import calibration_error, importance, ranking_measures, sentence
from h3gnn.evaluation.decisions import (
    ClassDecider,
    NumberDecider,
    NumberScale,
    Rule,
    best_threshold,
    learn_cuts,
)
from h3gnn.evaluation.heads import PENALTIES, Basis, LinearHead, Pool, Rows, Target
from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.graph import Graph
from tests.rejects import rejects


def two_groups(nodes: int = 120, apart: float = 3.0, rare: float = 0.5, seed: int = 0) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    labels = (np.arange(nodes) < rare * nodes).astype(np.int64)
    rows = random.normal(size=(nodes, 6)).astype(np.float32)
    rows[:, 0] += apart * labels
    return rows, labels


def ring(features: Any, **more: Any) -> Graph:
    """Return nodes in a ring, in an order that has nothing to do with the rows."""
    nodes = len(features)
    order = np.random.default_rng(5).permutation(nodes)
    ends = np.stack([order, np.roll(order, 1)])
    return check_graph(features, np.concatenate([ends, ends[::-1]], axis=1), **more)


def predictor(rows: Any, chosen: Any, values: Any, classes: int, rule: Rule, head: str) -> NodePredictor:
    noise = np.random.default_rng(9).normal(size=(len(rows), 2)).astype(np.float32)
    return NodePredictor(NodeInputs.of(ring(noise), rows), chosen, values, classes, rule, head)


@pytest.mark.parametrize("head", HEADS)
def test_unlabelled_nodes_get_the_class_of_their_group(head: str) -> None:
    rows, labels = two_groups()
    chosen = np.arange(0, 120, 3)
    decision = predictor(rows, chosen, labels[chosen], 2, Rule(), head)(np.arange(120))
    assert (decision.classes == labels).mean() > 0.85
    np.testing.assert_allclose(decision.probabilities.sum(axis=1), 1)
    np.testing.assert_allclose(decision.probability, decision.probabilities[np.arange(120), decision.classes])
    confident = ~decision.cannot_tell
    if head == "logistic":
        assert (decision.classes == labels)[confident].mean() >= (decision.classes == labels).mean()


def test_random_labels_score_as_chance() -> None:
    random = np.random.default_rng(1)
    labels = random.integers(0, 2, 90)
    features = random.normal(size=(90, 5)).astype(np.float32)
    found = predict_nodes(
        ring(features),
        random.normal(size=(90, 40)).astype(np.float32),
        labels,
        ("a", "b"),
        labelled_too=True,
    )
    assert abs(found.scores.mean["balanced_accuracy"] - 0.5) < 0.15
    assert found.scores.mean["log_loss"] < 0.8  # the weights of the pool keep the probabilities modest
    assert "nothing significant" in str(sentence(found.scores))


def test_held_out_predictions_do_not_use_the_label_of_the_node() -> None:
    rows, labels = two_groups(60)
    wrong = labels.copy()
    wrong[5] = 1 - wrong[5]
    found = predict_nodes(ring(rows), rows, wrong, ("a", "b"), labelled_too=True, measure_importance=False)
    assert found.table.set_index("node").loc[5, "class"] == "ab"[labels[5]]
    assert found.table.set_index("node").loc[5, "label"] == "ab"[wrong[5]]


def test_probabilities_are_calibrated() -> None:
    rows, labels = two_groups(600, apart=1.5)
    chosen = np.arange(0, 600, 2)
    decision = predictor(rows, chosen, labels[chosen], 2, Rule(), "logistic")(np.arange(1, 600, 2))
    assert calibration_error(decision.probabilities, labels[1::2]) < 0.08


@pytest.mark.parametrize("head", ["logistic", "boosting"])
def test_balanced_weights_and_thresholds_find_more_of_a_rare_class(head: str) -> None:
    rows, labels = two_groups(300, apart=1.5, rare=0.1)
    every = np.arange(300)
    log_p = predictor(rows, every, labels, 2, Rule(), head).model.held_out()

    def found(rule: Rule) -> Any:
        return ClassDecider.fit(log_p, labels, rule)(log_p)

    plain, balanced, low = found(Rule()), found(Rule("balanced")), found(Rule(threshold=0.1))
    np.testing.assert_allclose(plain.probabilities, balanced.probabilities)  # only the decision moves
    assert plain.classes.sum() < balanced.classes.sum()
    np.testing.assert_array_equal(low.classes, (low.probabilities[:, 1] >= 0.1).astype(int))
    threshold = ClassDecider.fit(log_p, labels, Rule(threshold="auto")).threshold
    assert threshold is not None
    assert 0 < threshold < 0.9


def test_a_given_cut_marks_lower_probabilities() -> None:
    log_p = np.log([[0.95, 0.05], [0.4, 0.6]])
    decision = ClassDecider.fit(log_p, np.array([0, 1]), Rule(cannot_tell_below=0.9))(log_p)
    assert decision.classes.tolist() == [0, 1]
    assert decision.cannot_tell.tolist() == [False, True]


def test_a_learned_cut_worked_by_hand() -> None:
    probability = np.linspace(0.99, 0.6, 20)
    labels = np.zeros(20, dtype=np.int64)
    labels[[12, 14, 16, 18]] = 1  # all decided 0: 80 % right, so 90 % are wanted above the cut
    cuts = learn_cuts(probability, np.zeros(20, dtype=np.int64), labels, 2, None)
    assert cuts[0] == probability[13]  # 13 of the first 14 are right; of the first 15 or more, fewer
    assert cuts[1] == cuts[0]  # never predicted here, so it has the cut of all
    assert learn_cuts(probability[:9], np.zeros(9, dtype=np.int64), labels[:9], 2, None)[0] == np.inf


def test_the_best_threshold_worked_by_hand() -> None:
    probability = np.array([0.9, 0.6, 0.4, 0.3, 0.2])
    truth = np.array([True, True, True, False, False])
    assert best_threshold(probability, truth, "auto") == 0.4
    assert best_threshold(probability, truth, 0.25) == 0.25


@pytest.mark.parametrize("scale", [0.4, 1.0, 2.5])
def test_the_weight_of_a_single_head_undoes_a_scale(scale: float) -> None:
    random = np.random.default_rng(0)
    truth = random.uniform(0.05, 0.95, 4000)
    labels = (random.uniform(size=4000) < truth).astype(np.int64)
    log_p = np.log(np.stack([1 - truth, truth], axis=1)) * scale
    pool = Pool.fit([log_p[None]], Target(labels, 2))
    assert 1 / pool.weights[0] == pytest.approx(scale, rel=0.15)


def test_the_projection_of_a_wide_embedding_keeps_inner_products() -> None:
    rows, _ = two_groups(40)
    wide = np.concatenate([rows, np.random.default_rng(3).normal(size=(40, 90)).astype(np.float32)], axis=1)
    small = Basis(wide, np.arange(20)).labelled
    full = (wide - wide.mean(axis=0)) / wide.var(axis=0).mean() ** 0.5
    np.testing.assert_allclose(small @ small.T, (full @ full.T)[:20, :20], atol=1e-3)
    assert small.shape == (20, 20)


def test_columns_of_a_table_have_one_scale_each() -> None:
    rows, labels = two_groups(80)
    target = Target(labels, 2)
    other = rows * np.array([1, 1e4, 1, 1, 1e-3, 1], dtype=np.float32)
    fits = [
        LinearHead(Basis(one, np.arange(80), standardize=True), target, "", of_columns=True)
        for one in (rows, other)
    ]
    first, second = (one.held_out([np.arange(40)], [np.arange(40, 80)])[0] for one in fits)
    np.testing.assert_allclose(first, second, atol=1e-3)


def test_a_factor_divides_the_penalty_of_a_column_by_its_square() -> None:
    rows, _ = two_groups(60)
    numbers = rows @ np.arange(rows.shape[1]) + np.random.default_rng(4).normal(size=60)
    factors = np.where(np.arange(rows.shape[1]) < 2, 1.0, 0.1)
    basis = Basis(rows, np.arange(60), standardize=True, factors=factors)
    head = LinearHead(basis, Target(numbers, 0), "", of_columns=True)
    scaled = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    penalty = 60 * PENALTIES[4] * np.diag(1 / factors**2)
    weights = np.linalg.solve(scaled.T @ scaled + penalty, scaled.T @ (numbers - numbers.mean()))
    found = head.fit(4)(Rows(rows, rows, np.arange(60)))[:, 0]
    np.testing.assert_allclose(found, scaled @ weights + numbers.mean(), rtol=1e-3)


def test_numbers_are_predicted_with_intervals_that_cover() -> None:
    random = np.random.default_rng(2)
    rows = random.normal(size=(3000, 4)).astype(np.float32)
    numbers = np.exp(rows[:, 0] + 0.3 * random.normal(size=3000) + 5)
    labels = np.where(np.arange(3000) % 10 == 0, numbers, np.nan)
    found = predict_nodes(ring(rows), rows, labels, (), head="blend", measure_importance=False)
    table = found.table.set_index("node")
    truth = numbers[table.index]
    assert 0.85 < ((table["low"] <= truth) & (truth <= table["high"])).mean() < 0.95
    assert 0.85 < found.scores.mean["coverage"] < 0.96
    assert found.scores.mean["r2"] > 0.6
    assert found.as_dict()["held_out"]["positive_class"] is None


def test_intervals_worked_by_hand() -> None:
    predicted, truth = np.zeros((9, 1)), np.arange(1.0, 10.0)
    decider = NumberDecider.fit(predicted, truth, Rule(coverage=0.8), NumberScale())
    assert decider.radius == 8  # the 8th of 9 errors: 0.8 of 10 rows, the new one among them
    decision = decider(np.array([[2.0]]))
    assert (decision.number[0], decision.low[0], decision.high[0]) == (2, -6, 10)
    assert NumberDecider.fit(predicted, truth, Rule(coverage=0.95), NumberScale()).radius == np.inf


def test_positive_skewed_numbers_are_learned_as_logarithms() -> None:
    random = np.random.default_rng(0)
    assert NumberScale.fit(random.lognormal(size=200)).log
    assert not NumberScale.fit(random.normal(10, 1, size=200)).log
    assert not NumberScale.fit(random.lognormal(size=200) - 0.5).log
    scale = NumberScale(log=True)
    np.testing.assert_allclose(scale.back(scale(np.array([0.5, 2.0]))), [0.5, 2.0])


def test_ranking_measures_are_those_of_scikit_learn() -> None:
    from sklearn.metrics import average_precision_score, roc_auc_score

    random = np.random.default_rng(0)
    for ties in (3, 1000):
        score, truth = random.integers(0, ties, 200).astype(float), random.random(200) < 0.2
        found = ranking_measures(score, truth)
        assert found["average_precision"] == pytest.approx(average_precision_score(truth, score))
        assert found["roc_auc"] == pytest.approx(roc_auc_score(truth, score))


def test_the_part_that_decides_contributes() -> None:
    """The class is a column, or the column of a neighbour, or in the embedding only."""
    random = np.random.default_rng(3)
    features = random.normal(size=(300, 3)).astype(np.float32)
    graph = ring(features)
    around = graph.adjacency(undirected=True, self_loops=False).mean(features)
    hidden = random.normal(size=(300, 8)).astype(np.float32)
    decisive = {OWN: features[:, 0], NEIGHBOURS: around[:, 0], EMBEDDING: hidden[:, 0]}
    for part, column in decisive.items():
        labels = np.where(np.arange(300) < 120, (column > 0).astype(int), -1)
        found = predict_nodes(
            graph,
            hidden,
            labels,
            ("no", "yes"),
            allow_leaks=True,
            measure_importance=part == OWN,
        )
        gains = {one.part: one.gain or 0.0 for one in found.scores.contributions}
        if part == OWN:
            assert found.scores.contributions[0].score > 0.9
            assert found.importance[0][0] == "feature 1"
        else:
            assert max(gains, key=gains.__getitem__) == part
            assert gains[part] > 0.2
        assert ("adds nothing" in str(found.embedding_note)) == (part != EMBEDDING)


def test_resamples_without_the_rare_class_are_no_error() -> None:
    rows, labels = two_groups(40, rare=0.1)
    found = predict_nodes(ring(rows), rows, labels, ("a", "b"), labelled_too=True, measure_importance=False)
    assert found.scores.main == "average_precision"
    assert all(np.isfinite([one.score, one.error]).all() for one in found.scores.contributions)


def test_importance_of_a_head_on_the_embedding_is_not_measured() -> None:
    rows, labels = two_groups(60)
    model = NodeModel(NodeInputs.of(ring(rows), rows), np.arange(60), Target(labels, 2), "logistic")
    assert importance(model, np.arange(60)) == []


def test_folds_spread_classes_and_numbers() -> None:
    labels = np.array([0] * 40 + [1] * 10)
    folds = labelled_folds(Target(labels, 2), 0)
    assert [int(labels[one].sum()) for one in folds] == [2] * 5
    assert sorted(np.concatenate(folds).tolist()) == list(range(50))
    numbers = np.random.default_rng(0).permutation(50).astype(float)
    for fold in labelled_folds(Target(numbers, 0), 0):
        assert sorted((numbers[fold] // 5).astype(int).tolist()) == list(range(10))


@pytest.mark.parametrize("labels", [[-1, -1], [0] * 9 + [-1], [0] * 9 + [1, 1]])
def test_too_few_labels_are_rejected(labels: list[int]) -> None:
    with rejects("too-few-labels"):
        check_labels(np.array(labels), ("red", "blue"))


@pytest.mark.parametrize("numbers", [[1.0] * 20, [np.nan] * 30, [*range(9)]])
def test_too_few_numbers_are_rejected(numbers: list[float]) -> None:
    with rejects("too-few-labels"):
        check_labels(np.array(numbers, dtype=float), ())


def test_rare_and_tiny_classes_are_noted() -> None:
    notes = check_labels(np.array([0] * 90 + [1] * 5 + [2] * 2), ("licit", "fraud", "odd"))
    assert "fewer than 4 labelled nodes: odd" in notes[0]
    assert "fraud is rare (5.2 %" in notes[1]


@pytest.mark.parametrize(
    ("rule", "classes", "code"),
    [
        (Rule("heavy"), 2, "value-invalid"),
        (Rule(threshold=0.5), 3, "threshold-needs-two-classes"),
        (Rule("balanced", 0.5), 2, "threshold-and-class-weight"),
        (Rule(threshold=1.5), 2, "value-invalid"),
        (Rule(cannot_tell_below=-1), 2, "value-invalid"),
        (Rule(coverage=1.5), 0, "value-invalid"),
        (Rule("balanced"), 0, "option-needs-classes"),
        (Rule(cannot_tell_below=0.5), 0, "option-needs-classes"),
    ],
)
def test_invalid_rules_are_rejected(rule: Rule, classes: int, code: str) -> None:
    with rejects(code):
        rule.check(classes)


def test_many_labelled_nodes_have_three_folds() -> None:
    for size, folds in ((400, 5), (5001, 3)):
        for target in (Target(np.arange(size) % 2, 2), Target(np.arange(size) * 0.5, 0)):
            found = labelled_folds(target, 0)
            assert len(found) == folds
            np.testing.assert_array_equal(np.sort(np.concatenate(found)), np.arange(size))


def test_with_times_the_folds_are_periods() -> None:
    times = np.random.default_rng(0).permutation(40)
    found = labelled_folds(Target(np.arange(40) % 2, 2), 0, times)
    assert [sorted(times[one].tolist()) for one in found] == [[*range(at, at + 8)] for at in range(0, 40, 8)]
    late = np.where(times < 30, 0, 1)  # outside of the last two periods there is one class
    assert max(np.ptp(times[one]) for one in labelled_folds(Target(late, 2), 0, times)) > 8


def test_folds_are_periods_if_all_that_is_predicted_is_later() -> None:
    rows, labels = two_groups(60)
    graph, given = ring(rows), np.where(np.arange(60) < 40, labels, -1)

    def notes(times: np.ndarray, test: np.ndarray | None = None) -> str:
        known = given if test is None else labels
        options: dict[str, Any] = {"times": times, "test": test, "measure_importance": False}
        return " ".join(predict_nodes(graph, rows, known, ("a", "b"), head="logistic", **options).notes)

    assert "periods" in notes(np.arange(60))
    assert "periods" not in notes(-np.arange(60))
    assert "periods" in notes(np.arange(60), np.arange(60) >= 50)
