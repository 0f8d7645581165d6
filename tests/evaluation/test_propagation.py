"""Label propagation and Correct & Smooth on the path 0 – 1 – 2 – 3 – 4, worked out by hand."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from h3gnn.evaluation.heads import FLOOR, Target
from h3gnn.evaluation.propagation import PropagationHead, correct_and_smooth, walk

PATH = np.eye(5) + np.eye(5, k=1) + np.eye(5, k=-1)
P = PATH / PATH.sum(axis=1, keepdims=True)


def step(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.asarray(P @ values)


def test_two_steps_of_propagation() -> None:
    """0 is of class 0 and 3 of class 1; after two steps 2 has met them with weights 1/36 and 5/36."""
    target = Target(np.array([0, -1, -1, 1, -1]), 2)
    head = PropagationHead(step, 5, np.arange(5), target, restart=0.5, steps=2)
    (found,) = head.held_out([np.array([0, 3])], [np.array([2])])
    np.testing.assert_allclose(np.exp(found[0, 0]), [1 / 6, 5 / 6], rtol=1e-3)


def test_a_long_walk_is_the_inverse() -> None:
    start = np.array([[1.0], [0], [0], [2], [0]])
    expected = 0.3 * np.linalg.inv(np.eye(5) - 0.7 * P) @ start
    np.testing.assert_allclose(walk(step, start, 0.3, 80), expected, rtol=1e-6)


def test_an_error_is_corrected_at_its_full_size_wherever_it_is_reached() -> None:
    """All predictions are even, the only label is 0: the error (0.5, −0.5) is added to each node."""
    apart = np.zeros((6, 6))
    apart[:5, :5], apart[5, 5] = P, 1.0
    even = np.log(np.full((6, 2), 0.5))
    p = np.exp(correct_and_smooth(even, np.array([2]), np.array([0]), lambda values: apart @ values))
    np.testing.assert_allclose(p[:5], [[1, 0]] * 5, atol=2 * FLOOR)
    np.testing.assert_allclose(p[5], [0.5, 0.5])  # no label reaches it


def test_without_errors_labels_and_predictions_are_smoothed() -> None:
    p = np.array([[1, 0], [0.2, 0.8], [0.5, 0.5], [0.9, 0.1], [0, 1.0]])
    log_p = np.log(np.maximum(p, 1e-30))
    found = correct_and_smooth(log_p, np.array([0, 4]), np.array([0, 1]), step, restart=0.5)
    np.testing.assert_allclose(np.exp(found), 0.5 * np.linalg.inv(np.eye(5) - 0.5 * P) @ p, atol=1e-4)
