"""Only the final score depends on test labels."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from h3gnn.evaluation.evaluator import PROBES, Evaluation, Evaluator, agreement
from h3gnn.evaluation.probe import gradient_candidates
from h3gnn.evaluation.protocols import (
    PUBLISHED,
    VALIDATION,
    Candidates,
    SplitScores,
    candidates_from_scores,
    find_protocol,
    score,
)
from tests.rejects import rejects

NODES, EPOCHS = 120, (0, 10)


def graph(splits: int = 2) -> tuple[Tensor, list[Tensor]]:
    """Labels, and splits that share their test nodes."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(NODES) % 3
    masks = [torch.zeros(NODES, splits, dtype=torch.bool) for _ in range(3)]
    masks[2][90:] = True
    for split in range(splits):
        order = torch.randperm(90, generator=generator)
        masks[0][order[:45], split] = True
        masks[1][order[45:], split] = True
    return labels, masks


def embeddings_by_epoch(labels: Tensor) -> list[tuple[int, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    centres = torch.randn(3, 8, generator=generator)
    noise = torch.randn(len(EPOCHS), NODES, 8, generator=generator)
    return [(epoch, 0.6 * centres[labels] + noise[i]) for i, epoch in enumerate(EPOCHS)]


def evaluated(
    labels: Tensor, masks: list[Tensor], runs: list[tuple[int, Tensor]], **options: Any
) -> Evaluation:
    evaluator = Evaluator(labels, *masks, **options)
    for epoch, embedding in runs:
        evaluator.add(epoch, embedding)
    return evaluator.result()


@pytest.mark.parametrize(
    ("rule", "probe"),
    [("last", "logistic"), ("validation", "logistic"), ("label-free", "logistic"), ("last", "gradient")],
)
def test_only_the_final_score_depends_on_test_labels(
    rule: str, probe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PROBES, "gradient", partial(gradient_candidates, learning_rates=(0.01,), steps=30))
    labels, masks = graph()
    runs = embeddings_by_epoch(labels)
    first = evaluated(labels, masks, runs, epoch_rule=rule, probe=probe).scores
    for garbage in ((labels[90:] + 1) % 3, torch.full((30,), 40), torch.full((30,), -1)):
        changed = torch.cat([labels[:90], garbage])
        second = evaluated(changed, masks, runs, epoch_rule=rule, probe=probe).scores
        assert second.chosen == first.chosen
        assert second.validation == first.validation
        assert second.accuracy != first.accuracy


def test_published_chooses_on_test_nodes() -> None:
    labels, masks = graph()
    runs = embeddings_by_epoch(labels)
    honest = evaluated(labels, masks, runs, epoch_rule="validation").scores
    best = evaluated(labels, masks, runs, protocol=PUBLISHED).scores
    alone = [evaluated(labels, masks, [run], protocol=PUBLISHED).scores.accuracy for run in runs]
    assert best.accuracy == np.max(alone, axis=0).tolist()
    assert all(b >= h for b, h in zip(best.accuracy, honest.accuracy, strict=True))


def candidates(
    val: list[float], loss: list[float], predicted: list[list[int]], nodes: int = 10**6
) -> Candidates:
    return Candidates(
        tuple({"strength": float(i)} for i in range(len(val))),
        np.array([val]),
        np.array([loss]),
        np.array([nodes]),
        (np.array(predicted, dtype=np.int16),),
        (np.zeros(np.shape(predicted), dtype=np.float32),),
        2,
    )


def test_ties_go_to_the_smaller_loss_then_to_the_earlier_epoch() -> None:
    early = candidates([0.5, 0.8], [0.9, 0.4], [[0, 0], [0, 1]])
    late = candidates([0.8, 0.8], [0.4, 0.3], [[1, 1], [1, 0]])
    answers = [np.array([0, 0])]
    (choice,) = VALIDATION.choose({3: early, 7: late})
    assert choice.as_dict() == {"epoch": 7, "strength": 1.0}
    (tied,) = VALIDATION.choose({3: early, 7: early})
    assert tied.epoch == 3
    (peeked,) = PUBLISHED.choose({3: early, 7: late}, answers)
    assert peeked.as_dict() == {"epoch": 3, "strength": 0.0}
    assert score({3: early, 7: late}, [choice], answers).accuracy == [0.5]


def test_the_loss_decides_within_one_standard_error() -> None:
    # 0.8 on 16 nodes has a standard error of √(0.8 · 0.2 / 16) = 0.1: 0.71 is as good, 0.69 is not
    found = candidates([0.69, 0.71, 0.8], [0.1, 0.3, 0.5], [[0], [0], [0]], nodes=16)
    (choice,) = VALIDATION.choose({0: found})
    assert choice.setting == {"strength": 1.0}
    (choice,) = VALIDATION.choose({0: candidates([0.69, 0.71, 0.8], [0.1, 0.3, 0.5], [[0], [0], [0]])})
    assert choice.setting == {"strength": 2.0}
    endless = candidates([0.1, 0.8], [0.2, float("inf")], [[0], [0]], nodes=16)
    assert VALIDATION.choose({0: endless})[0].setting == {"strength": 1.0}
    (peeked,) = PUBLISHED.choose({0: candidates([0.9, 0.1], [0.1, 0.9], [[1], [0]], 16)}, [np.array([0])])
    assert peeked.setting == {"strength": 1.0}


def test_test_labels_are_accepted_only_by_protocols_that_use_them() -> None:
    some = candidates([0.5], [0.9], [[0, 0]])
    with pytest.raises(ValueError, match="must not see test labels"):
        VALIDATION.choose({0: some}, [np.array([0, 0])])
    with pytest.raises(ValueError, match="needs test labels"):
        PUBLISHED.choose({0: some})
    with rejects("unknown-protocol"):
        find_protocol("best")
    with rejects("unknown-epoch-rule"):
        VALIDATION.epoch_rule("best")


def test_candidates_from_scores() -> None:
    labels = torch.tensor([0, 1, 0, 1, -1])
    log_p = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.7, 0.3], [0.5, 0.5]]).log()[None]
    val = torch.tensor([True, True, False, False, True])[:, None]
    test = torch.tensor([False, False, True, True, False])[:, None]
    found = candidates_from_scores(log_p, labels, val, test)
    assert found.val_accuracy.tolist() == [[1.0]]
    assert found.val_loss[0, 0] == pytest.approx(0, abs=1e-9)  # both are correct, so any confidence is best
    scores = score({0: found}, VALIDATION.choose({0: found}), [np.array([0, 1])])
    assert scores.accuracy == [0.5]
    assert scores.roc_auc == [0.0]  # the node of class 1 has 0.3 of it, that of class 0 has 0.4


def test_epoch_rules_last_and_label_free() -> None:
    labels, masks = graph(1)
    clear = torch.nn.functional.one_hot(labels, 3).float()
    noise = torch.randn(NODES, 12, generator=torch.Generator().manual_seed(2))
    agreeing = torch.cat([clear, clear, clear, clear], dim=1) + 0.01 * noise
    runs = [(5, noise), (10, agreeing), (15, noise.roll(1, 0))]
    assert evaluated(labels, masks, runs).scores.chosen[0]["epoch"] == 15
    chosen = evaluated(labels, masks, runs, epoch_rule="label-free", parts=2, cluster=True)
    assert chosen.scores.chosen[0]["epoch"] == 10
    assert chosen.clustering is not None
    assert np.mean(chosen.clustering["acc"]) == 1.0
    assert agreement(agreeing, 3, parts=4) == pytest.approx(1.0)
    assert agreement(noise, 3) < 0.3


def test_scores_of_splits_are_joined_in_order() -> None:
    one = SplitScores([0.1], [0.4], [0.7], [0.2], [{"epoch": 0}], {"majority": [0.5]})
    more = {"majority": [0.6, 0.7]}
    two = SplitScores([0.2, 0.3], [0.5, 0.6], [0.8, 0.9], [0.1, 0.0], [{}, {"a": 1}], more)
    joined = SplitScores.joined([one, two])
    assert joined.accuracy + joined.macro_f1 == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    assert (joined.roc_auc, joined.validation) == ([0.7, 0.8, 0.9], [0.2, 0.1, 0.0])
    assert joined.chosen == [{"epoch": 0}, {}, {"a": 1}]
    assert joined.secondary == {"majority": [0.5, 0.6, 0.7]}
    assert SplitScores.joined([one, replace(two, roc_auc=None)]).roc_auc is None
