"""The paper's theory as measurements: how runs settle, how errors grow with masks, how gradients change.

Both objectives have the same encoder, start and masks. Each is trained twice: by gradient descent on the loss
of one fixed mask, which is what the theorem is about, and with Adam as in training. The limit of a run is
where it stands after `LIMIT` times the epochs that are shown. `claims` says what the numbers mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from h3gnn.encoder.encode import embed_models
from h3gnn.evaluation.criteria import RidgeValidation
from h3gnn.experiments.scoring import Splits
from h3gnn.experiments.spaces import source_of
from h3gnn.experiments.tables.cells import Cell
from h3gnn.experiments.tables.descent import Asked, descend, walk
from h3gnn.experiments.tables.measures import look_epochs
from h3gnn.graphs.graph import Graph
from h3gnn.training.batches import WholeGraph
from h3gnn.training.loop import measure, runner
from h3gnn.training.models import derive_seeds

LIMIT, LOOKS = 4, 20
"""The limit lies at so many times the shown epochs, of which so many are looked at."""
RATIOS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
"""Mask ratios at which the error is measured."""


def run_convergence(cell: Cell, graph: Graph, device: torch.device) -> dict[str, Any]:
    """Measure one objective on one graph, all seeds as one stack; test nodes are not looked at."""
    shown = cell.params["epochs"]
    source = source_of(graph, cell.params, device)
    seeds = [derive_seeds(seed, 1)[0] for seed in cell.seeds]
    looks = [0, *look_epochs(shown, LOOKS)]

    def begin() -> Asked:
        return Asked.begin(cell.params | {"epochs": LIMIT * shown}, source, seeds)

    rate, gradients, descent = descend(begin, looks, LIMIT * shown)
    return {
        "epochs": looks,
        "rate": f"{rate:g}",
        "descent": descent,
        "gradients": gradients,
        **train_as_usual(begin(), graph, looks, LIMIT * shown),
    }


def train_as_usual(asked: Asked, graph: Graph, looks: Sequence[int], epochs: int) -> dict[str, Any]:
    """Train with Adam, new masks and dropout; the loss that is noted is that of the fixed mask without.

    Accuracy is that on validation nodes. Errors under masks are measured before training and at the last
    look, the rank of the embedding before training and at the end of the whole run.
    """
    step, device = asked.step, asked.step.source.device
    labels, train, val, _ = Splits.of(graph)
    ridge = RidgeValidation(labels, train, val, device)
    mask_of, rate_of = asked.training.mask_of(len(asked.seeds)), asked.training.learning_rate_of()
    run = runner(step)
    curve: list[Tensor] = []
    masks: list[dict[str, Any]] = []

    def look(epoch: int) -> None:
        embedding = embed_models(step.student, cast(WholeGraph, step.source).rows())
        curve.append(ridge.accuracies(embedding).mean(dim=1))
        if epoch in (looks[0], looks[-1]):
            masks.append(errors_under_masks(asked))

    def advance(epoch: int) -> None:
        step.student.train()
        step.set_learning_rate(rate_of(epoch))
        run(mask_of(epoch))

    ranks = [measure(step)["effective_rank"]]
    found = walk(asked, advance, looks, epochs, look)
    ranks.append(measure(step)["effective_rank"])
    return {
        "adam": found.settled(),
        "validation": torch.stack(curve, dim=1).tolist(),
        "masks": {"untrained": masks[0], "trained": masks[-1]},
        "rank": torch.stack(ranks, dim=1).tolist(),
    }


@torch.no_grad()
def errors_under_masks(asked: Asked) -> dict[str, Any]:
    r"""Measure the error against how far the mask moves the features, at every mask ratio.

    `shift` is :math:`\delta = \lVert\bar f - f\rVert / \lVert f\rVert` and `error` the objective's own
    distance divided by the size of what is wanted: embeddings and features are different spaces, so that
    only relative sizes compare. `encoder` is the largest
    :math:`\lVert E(\bar f) - E(f)\rVert / \lVert\bar f - f\rVert`, and `decoder` the largest
    :math:`\lVert D(E(\bar f)) - D(E(f))\rVert / \lVert E(\bar f) - E(f)\rVert`: at most :math:`L_E` and
    :math:`L_D`, the latter 1 where there is no decoder.
    """
    features, token = asked.batch.part.features.dense, asked.step.student.input.mask_token
    wanted, seen = asked.wanted(), asked.encode(None)
    said = asked.decode(seen)
    found: dict[str, list[Tensor]] = {"shift": [], "error": [], "encoder": [], "decoder": []}
    for ratio in RATIOS:
        mask = asked.hide(ratio)
        shift = ((token - features) * mask[..., None]).flatten(1).norm(dim=1)
        embedding = asked.encode(mask)
        answer = asked.decode(embedding)
        moved = (embedding - seen).flatten(1).norm(dim=1)
        found["shift"].append(shift / features.norm())
        found["error"].append((answer - wanted).flatten(1).norm(dim=1) / wanted.flatten(1).norm(dim=1))
        if bool(mask.any()):
            found["encoder"].append(moved / shift)
            found["decoder"].append((answer - said).flatten(1).norm(dim=1) / moved)
    curves = {name: torch.stack(found[name], dim=1).tolist() for name in ("shift", "error")}
    most = {name: torch.stack(found[name]).amax(dim=0).tolist() for name in ("encoder", "decoder")}
    return {**curves, **most}
