"""Tokens of paths to other node types: by hand, hidden from a student, and beside the other parameters."""

from __future__ import annotations

import torch

from h3gnn.encoder.tokens import PathTokens
from h3gnn.training.models import PathCounts

MEANS = torch.tensor([[3.0, 4.0, 2.0], [0.0, 0.0, -1.0]])
ROOT = 2**0.5


def tokens() -> PathTokens:
    """Return tokens of two paths, of two columns and of one."""
    module = PathTokens(1, [2, 1], 2)
    with torch.no_grad():
        module.token.copy_(torch.tensor([[[0.0, 1.0, 10.0]]]))
        module.weight.copy_(torch.tensor([[[1.0, -1.0], [2.0, 0.5], [1.0, 3.0]]]))
    return module


def test_tokens_worked_out_by_hand() -> None:
    first, second = tokens()(MEANS)
    # √2 · [3, 4] W = √2 · [11, -1], plus the token [0, 1] W = [2, 0.5]
    expected = torch.tensor([[[11 * ROOT + 2, 0.0], [2.0, 0.5]]])
    torch.testing.assert_close(first, expected)
    torch.testing.assert_close(second, torch.tensor([[[12.0, 36.0], [9.0, 27.0]]]))


def test_a_hidden_path_leaves_the_token_alone() -> None:
    kept = torch.tensor([[[0.0, 2.0], [1.0, 0.0]]])
    first, second = tokens()(MEANS, kept)
    torch.testing.assert_close(first, torch.tensor([[[2.0, 0.5], [2.0, 0.5]]]))
    torch.testing.assert_close(second, torch.tensor([[[14.0, 42.0], [10.0, 30.0]]]))


def test_columns_of_paths_without_a_token_are_ignored() -> None:
    wider = torch.cat([MEANS, torch.ones(2, 3)], dim=1)
    for one, other in zip(tokens()(wider), tokens()(MEANS), strict=True):
        torch.testing.assert_close(one, other)


def test_relations_come_first_and_the_rest_are_paths() -> None:
    found = PathCounts(3, (5, 4, 3, 2)).tokens(hops=2, most=5)
    assert found == {"paths": ((0,), (1,), (2,)), "path_widths": (5, 4)}
    assert PathCounts(0, (5, 4)).tokens(2, 1) == {"paths": (), "path_widths": (5,)}
    assert PathCounts().tokens(2, 6) == {"paths": (), "path_widths": ()}
    assert len(PathCounts(2).tokens(2, 6)["paths"]) == 6
