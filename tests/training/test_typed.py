"""Training on the graph of one node type: tokens by dense formulas, batches, processes and checkpoints."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from h3gnn.encoder import EncoderStack, FeatureMatrix
from h3gnn.encoder.encode import GraphRows
from h3gnn.encoder.tokens import Part, whole_graph
from h3gnn.estimator import H3GNN
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.type_view import type_view
from h3gnn.preprocessing import PreparedGraph, Preprocessing
from h3gnn.storage.checkpoint_file import Checkpoints
from h3gnn.training.batches import SampledBatches, WholeGraph
from h3gnn.training.distributed import rows_in_memory
from h3gnn.training.masking import RandomMask
from h3gnn.training.models import stack_step
from h3gnn.training.objectives import OBJECTIVES
from h3gnn.training.sampling import ALL
from tests.graphs.test_type_view import films, small
from tests.training.ranked import run_together, typed
from tests.training.stacks import CPU, plain_training
from tests.training.test_checkpoints import assert_same_bits, fit, fit_killed

MODELS, HOPS = 2, 2
PATHS = ((0,), (1,), (0, 1))


@pytest.fixture(scope="module")
def view() -> Graph:
    found = type_view(films(own=False), "film")
    assert len(found.relation_names) == 2
    return found


def prepared(view: Graph) -> PreparedGraph:
    return Preprocessing.of(small(edge_weights="fixed").get_settings()).fit(view)


def sources(view: Graph, batch_size: int) -> tuple[WholeGraph, SampledBatches]:
    """The view as one batch, and in batches with all neighbours."""
    ready = prepared(view)
    support, features = ready.support.to(CPU, torch.double), ready.scaler(view.features).double()
    paths = ready.paths(CPU)
    assert paths is not None
    paths, rows = paths.double(), rows_in_memory(features, support)
    rows = GraphRows(rows.read, support, rows.columns, paths=paths)
    batches = SampledBatches(rows, HOPS, CPU, batch_size=batch_size, num_neighbors=ALL)
    return WholeGraph(FeatureMatrix(features), support, HOPS, None, paths), batches


def stack(view: Graph, entries: int = 0) -> EncoderStack:
    assert view.path_columns is not None
    how: dict[str, Any] = {"heads": 2, "hops": HOPS, "edge_weights": "fixed", "models": MODELS}
    found = EncoderStack(
        view.num_features, 8, entries, paths=PATHS, path_widths=view.path_columns.widths[:3], **how
    )
    found.reset_parameters([torch.Generator().manual_seed(at) for at in range(MODELS)], torch.empty(0))
    return found.double()


def dense(part: Part, weights: Tensor) -> Tensor:
    """Return edge weights of one model as a matrix."""
    pattern = part.blocks[0]
    found = torch.zeros(pattern.targets, pattern.sources, dtype=weights.dtype)
    found[pattern.rows, pattern.cols.long()] = weights
    return found


def normalized(links: Tensor) -> Tensor:
    degree = links.sum(dim=1)
    degree[degree == 0] = 1
    return links / (degree[:, None] * degree).sqrt()


def test_tokens_of_relations_are_those_of_dense_matrices(view: Graph) -> None:
    r"""σ(Ã_0 σ(Ã_1 X W) W'), with Ã of each relation alone, and dropped edges missing in both."""
    source, encoder = sources(view, 8)[0], stack(view)
    batch = source.batch_of(torch.empty(0))
    part, count = batch.part, view.num_nodes
    kept = torch.rand(MODELS, len(batch.start), generator=torch.Generator().manual_seed(0)) < 0.7
    weights = encoder.edges(batch.factor, batch.start) * kept
    mask = torch.rand(MODELS, count, generator=torch.Generator().manual_seed(1)) < 0.5
    found = encoder.tokens(encoder.project(part), part, weights, mask)

    assert view.relations is not None
    links = torch.zeros(2, count, count, dtype=torch.double)
    for relation, member in zip(links, view.relations, strict=True):
        relation[view.edge_index[1, member], view.edge_index[0, member]] = 1
    assert not torch.equal(links[0], links[1])
    adjacency = [normalized(one) for one in links]
    features = source.features.dense
    for model in range(MODELS):
        seen = torch.where(mask[model, :, None], encoder.input.mask_token[model], features)
        left = dense(part, kept[model].double())
        first = torch.split(encoder.input.weight[model], encoder.input.widths, dim=1)[2:]
        one, other = (matrix * left for matrix in adjacency)
        wanted = [torch.relu(one @ seen @ first[0]), torch.relu(other @ seen @ first[1])]
        onward = encoder.hop_tokens[2].linears[0].weight[model]  # type: ignore[index, union-attr]
        wanted.append(torch.relu(one @ torch.relu(other @ seen @ first[2]) @ onward))
        for at, token in enumerate(wanted):
            torch.testing.assert_close(found[model, :, 2 + at], token)


def test_with_all_neighbours_a_batch_is_the_graph_at_its_seeds(view: Graph) -> None:
    (whole, batches), encoder, seeds = sources(view, 8), stack(view), torch.tensor([31, 4, 17])
    mask = torch.rand(MODELS, view.num_nodes, generator=torch.Generator().manual_seed(1)) < 0.5

    def results(tokens: Tensor) -> list[Tensor]:
        encoder.zero_grad()
        loss = encoder.fuse(tokens).square().sum(dim=-1).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        return [tokens.detach(), *(one.grad.clone() for one in encoder.parameters() if one.grad is not None)]

    every, batch = whole.batch_of(seeds), batches.batch_of(seeds)
    edges = [encoder.edges(one.factor, one.start) for one in (every, batch)]
    wanted = results(encoder.tokens(encoder.project(every.part), every.part, edges[0], mask)[:, seeds])
    part = batch.part
    found = results(encoder.tokens(encoder.project(part), part, edges[1], part.rows_of(mask)))
    assert len(found) == len(wanted) > 10
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_one_batch_of_all_nodes_trains_as_the_whole_graph(view: Graph) -> None:
    steps = [
        stack_step(stack(view), source, [0, 1], plain_training(["teacher"] * MODELS), chunk=16)
        for source in sources(view, view.num_nodes)
    ]
    start = steps[0].student.path_tokens.weight.detach().clone()  # type: ignore[union-attr]
    for _ in range(3):
        for step in steps:
            step(RandomMask([0.5] * MODELS))
    full, batched = (step.student.state_dict() for step in steps)
    assert not torch.equal(full["path_tokens.weight"], start)
    for name, one in full.items():
        torch.testing.assert_close(batched[name], one, atol=1e-6, rtol=1e-5, msg=name)


@pytest.mark.parametrize("objective", sorted(OBJECTIVES))
@pytest.mark.parametrize("batch_size", [None, 16])
def test_every_objective_trains_the_tokens_of_paths(
    view: Graph, objective: str, batch_size: int | None
) -> None:
    how = {"objective": objective, "batch_size": batch_size, "edge_drop": 0.3, "token_dropout": 0.1}
    untrained, model = small(**{**how, "epochs": 0}).fit(view), small(**{**how, "epochs": 3}).fit(view)
    assert np.isfinite(model.embedding_).all()
    assert np.isfinite(model.history_["loss"]).all()
    before, after = (one.encoder_.state_dict() for one in (untrained, model))
    for name in ("path_tokens.weight", "mlp.output.weight", "input.weight"):
        assert not torch.equal(before[name], after[name]), name


@pytest.mark.parametrize("batch_size", [None, 16])
def test_a_resumed_run_has_the_same_bits(view: Graph, tmp_path: Path, batch_size: int | None) -> None:
    how: dict[str, Any] = {"batch_size": batch_size, "edge_drop": 0.3, "n_models": 2}
    how["objective"] = ["teacher", "edges"]
    how |= {"edge_weights": "fixed"} if batch_size else {}
    wanted = fit(view, **how)
    fit_killed(5, view, Checkpoints(tmp_path / "run", every=2), **how)
    assert_same_bits(fit(view, Checkpoints(tmp_path / "run", every=2), **how), wanted)


def test_other_paths_are_another_graph(view: Graph) -> None:
    assert view.path_columns is not None
    assert view.relations is not None
    swapped = view.relations.flip(0)
    others = [replace(view, relations=swapped), replace(view, path_columns=None)]
    model = small(epochs=0).fit(view)
    for other in others:
        again = small(epochs=0).fit(other)
        assert again.embedding_.shape != model.embedding_.shape or (
            np.abs(again.embedding_ - model.embedding_).max() > 1e-3
        )


def test_several_processes_train_as_one(tmp_path: Path) -> None:
    first, second = run_together("typed", tmp_path)
    alone = typed()
    for name, one in first.items():
        torch.testing.assert_close(second[name], one, atol=0, rtol=0)
        torch.testing.assert_close(alone[name], one, atol=2e-3, rtol=0)  # Adam amplifies rounding


def test_the_whole_part_has_the_means_of_all_nodes(view: Graph) -> None:
    ready = prepared(view)
    part = whole_graph(ready.features("auto", CPU), ready.support, HOPS, ready.paths(CPU))
    assert part.paths is not None
    assert view.path_columns is not None
    np.testing.assert_array_equal(part.paths.numpy(), view.path_columns.values)
    assert H3GNN().get_settings()["max_paths"] > len(view.relation_names)
