from __future__ import annotations

import numpy as np
import pytest
import torch

from h3gnn.training.history import History, Recorder, collapse_epochs, difficulty_quantiles, effective_rank


def test_effective_rank_of_shapes_one_can_see() -> None:
    line = torch.arange(10.0)[:, None] * torch.ones(1, 4)
    square = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    assert effective_rank(line[None]).item() == pytest.approx(1.0)
    assert effective_rank(square[None]).item() == pytest.approx(2.0)
    assert effective_rank(torch.ones(1, 5, 3)).item() == pytest.approx(1.0)  # one point: no spread at all
    wide = torch.randn(1, 6, 50)
    torch.testing.assert_close(effective_rank(wide), effective_rank(torch.nn.functional.pad(wide, (0, 9))))


def test_a_model_that_diverged_has_no_rank_and_disturbs_nobody() -> None:
    both = torch.randn(2, 8, 3)
    good = effective_rank(both)[0]
    both[1, 2, 1] = float("nan")
    ranks = effective_rank(both)
    assert ranks[0] == good
    assert ranks[1].isnan()


def test_the_epoch_of_collapse_is_named() -> None:
    ranks = np.array([[50.0, 50.0], [np.nan, np.nan], [20.0, 4.9], [6.0, 3.0]])
    assert collapse_epochs(History({"effective_rank": ranks})) == {1: 2}
    assert collapse_epochs(History()) == {}


def test_history_is_data() -> None:
    recorder = Recorder()
    recorder.add(loss=torch.tensor([2.0, 4.0]), effective_rank=torch.tensor([9.0, 8.0]))
    recorder.add(loss=torch.tensor([1.0, 3.0]))
    history = recorder.history()
    assert len(history) == 2
    assert history["loss"].tolist() == [[2.0, 4.0], [1.0, 3.0]]
    assert history.last("effective_rank").tolist() == [9.0, 8.0]
    assert recorder.latest("loss") == 2.0
    assert history.measured("effective_rank")[0].tolist() == [0]
    history.engine = {"precision": "float32"}
    again = History.from_dict(history.as_dict())
    assert again.engine == history.engine
    np.testing.assert_array_equal(again["effective_rank"], history["effective_rank"])


def test_difficulty_quantiles() -> None:
    quantiles = difficulty_quantiles(torch.tensor([[4.0, 0.0, 1.0, 3.0, 2.0]]))
    assert [value.item() for value in quantiles.values()] == [0, 1, 2, 3, 4]
    assert list(quantiles)[:2] == ["difficulty_q0", "difficulty_q25"]
