from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from h3gnn.training.masking import (
    DifficultyMask,
    ProbabilityMask,
    RandomMask,
    mask_bounds,
    masked_count,
    waiting_times,
)

ratios = st.sampled_from([0.1, 0.2, 0.3, 0.5, 0.8, 0.9])
shares = st.sampled_from([0.0, 0.1, 0.2, 0.3, 0.5, 0.8, 0.9, 1.0])


def generators(count: int, seed: int = 0) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed + i) for i in range(count)]


@pytest.mark.parametrize(
    ("nodes", "ratio", "masked"), [(100, 0.29, 29), (10, 0.3, 3), (7, 0.5, 3), (3, 0.1, 0)]
)
def test_the_count_is_the_floor_of_the_decimal_product(nodes: int, ratio: float, masked: int) -> None:
    assert masked_count(nodes, ratio) == masked


@settings(deadline=None)
@given(st.integers(1, 60), ratios, shares, st.integers(0, 5))
def test_random_and_difficulty_masks_hide_exactly_m_nodes(
    nodes: int, ratio: float, exploit: float, seed: int
) -> None:
    difficulty = torch.rand(2, nodes, generator=torch.Generator().manual_seed(seed))
    for strategy in (RandomMask([ratio] * 2), DifficultyMask([ratio] * 2, [exploit] * 2)):
        mask = strategy(difficulty, generators(2, seed))
        assert mask.dtype == torch.bool
        assert mask.sum(dim=1).tolist() == [masked_count(nodes, ratio)] * 2


@settings(deadline=None)
@given(st.integers(2, 60), ratios, shares, st.integers(0, 5))
def test_a_probability_mask_keeps_its_bounds(nodes: int, ratio: float, exploit: float, seed: int) -> None:
    difficulty = torch.rand(2, nodes, generator=torch.Generator().manual_seed(seed)) ** 8
    counts = ProbabilityMask([ratio] * 2, [exploit] * 2)(difficulty, generators(2, seed)).sum(dim=1)
    fewest, most = mask_bounds(nodes, ratio)
    assert 0 <= fewest <= most < nodes
    assert all(fewest <= count <= most for count in counts.tolist())


def test_the_hardest_nodes_are_always_in_a_difficulty_mask() -> None:
    difficulty = torch.tensor([[5.0, 1.0, 4.0, 2.0, 3.0, 0.0, 0.5, 0.1, 0.2, 0.3]])
    masks = [DifficultyMask([0.6], [0.5])(difficulty, generators(1, seed))[0] for seed in range(50)]
    hidden = torch.stack(masks).float().mean(dim=0)
    assert hidden[[0, 2, 4]].tolist() == [1.0, 1.0, 1.0]  # m = ⌊6 · 0.5⌋ = 3
    assert ((hidden[[1, 3, 5, 6, 7, 8, 9]] > 0) & (hidden[[1, 3, 5, 6, 7, 8, 9]] < 1)).all()


def test_probabilities_are_the_papers() -> None:
    difficulty = torch.tensor([[0.0, 1.0, 2.0, 4.0]])
    probability = ProbabilityMask([0.5], [0.8]).probabilities(difficulty)
    torch.testing.assert_close(probability, 0.1 + 0.4 * difficulty / 4)


def test_masking_frequencies_follow_the_probabilities() -> None:
    difficulty = torch.linspace(0, 1, 200)[None]
    strategy = ProbabilityMask([0.5], [0.8])
    generator = generators(1)
    drawn = torch.stack([strategy(difficulty, generator)[0] for _ in range(2000)]).double().mean(dim=0)
    wanted = strategy.probabilities(difficulty)[0].double()
    assert (drawn - wanted).abs().max() < 5 * math.sqrt(0.25 / 2000)


@settings(deadline=None)
@given(st.integers(0, 100))
def test_waiting_within_one_round_is_one_bernoulli_draw(seed: int) -> None:
    uniform = torch.rand(50, generator=torch.Generator().manual_seed(seed), dtype=torch.double)
    probability = torch.linspace(0, 0.99, 50, dtype=torch.double)
    assert torch.equal(waiting_times(probability, uniform) <= 1, uniform >= 1 - probability)


def test_no_difficulty_at_all_still_gives_a_mask() -> None:
    mask = ProbabilityMask([0.5], [1.0])(torch.zeros(1, 10), generators(1))
    assert mask.sum() == mask_bounds(10, 0.5)[0]


def test_each_model_draws_from_its_own_generator() -> None:
    difficulty = torch.rand(3, 40)
    together = ProbabilityMask([0.5, 0.3, 0.8], [0.5] * 3)(difficulty, generators(3))
    for model, ratio in enumerate([0.5, 0.3, 0.8]):
        alone = ProbabilityMask([ratio], [0.5])(difficulty[model : model + 1], generators(1, model))
        assert torch.equal(together[model : model + 1], alone)


@settings(deadline=None)
@given(st.integers(2, 60), ratios, shares, st.integers(0, 5))
def test_sizes_share_one_order_of_waiting_times(nodes: int, ratio: float, exploit: float, seed: int) -> None:
    difficulty = torch.rand(1, nodes, generator=torch.Generator().manual_seed(seed)) ** 8
    uniform = torch.rand(1, nodes, generator=generators(1, seed)[0])
    probability = ProbabilityMask([ratio], [exploit]).probabilities(difficulty)
    drawn, exact, bounded = (
        ProbabilityMask([ratio], [exploit], size)(difficulty, generators(1, seed))
        for size in ("free", "exact", "bounded")
    )
    if drawn.sum() < nodes - 1:
        assert torch.equal(drawn, torch.log(uniform) >= torch.log1p(-probability))  # one round of draws
    assert exact.sum() == masked_count(nodes, ratio)
    for mask in (exact, bounded):  # each is the free mask, gone on or stopped early
        assert (mask & drawn).sum() == min(mask.sum(), drawn.sum())


def test_a_free_mask_leaves_one_node_to_be_seen() -> None:
    mask = ProbabilityMask([0.999999], [0.0], "free")(torch.ones(1, 20), generators(1))
    assert mask.sum() == 19
    assert ProbabilityMask([0.9], [0.5], "free")(torch.ones(1, 1), generators(1)).sum() == 0
