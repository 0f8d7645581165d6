"""Measure one figure: train a system with its authors' settings, and score it as they do."""

from __future__ import annotations

import json
import time
import warnings
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.checks.probes import Found, Nodes, probe
from h3gnn.baselines import Progress
from h3gnn.baselines.embedder import embedding_of, train
from h3gnn.baselines.registry import System, systems
from h3gnn.baselines.supervised import GridPoint, predict
from h3gnn.evaluation.clustering import cluster_scores, compare_clusters
from h3gnn.experiments.methods import snapshot_epochs
from h3gnn.graphs.datasets import load
from h3gnn.graphs.graph import Graph, random_splits
from reproduction.files import fingerprint
from reproduction.origin import made_with

HERE = Path(__file__).parent
CANDIDATES = 20
"""Number of candidate epochs, where the authors select an epoch."""
MEMORY = 2**34


def checks_of(names: list[str]) -> list[dict[str, Any]]:
    """Return the checks of some systems, or of all, each with the name of its system."""
    chosen = [system for system in systems().values() if not names or system.name in names]
    return [{"system": system.name, **figure} for system in chosen for figure in system.figures]


def key_of(check: dict[str, Any]) -> str:
    """Return a name that changes with anything that the figure depends on."""
    words = ("source", "note", "figure", "spread")
    plain = {name: value for name, value in check.items() if name not in words}
    settings = asdict(_settings(systems()[check["system"]], check)[0])
    return fingerprint(json.loads(json.dumps({**plain, "all": settings})))


def run(check: dict[str, Any], watch: Progress) -> dict[str, Any]:
    """Measure one figure."""
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        graph = load(check["graph"])
    device = torch.device(check.pop("device", "cpu"))
    system = systems()[check["system"]]
    settings, point = _settings(system, check)
    repeats = min(check.pop("most", 100), check.get("repeats", 5))
    found = []
    for repeat in range(repeats):
        split = _split(graph, check.get("splits", "own"), repeat)
        if "labels" in system.sees:
            found.append(_classified(system, split, repeat, device, settings, point))
        else:
            found.append(_embedded(system, split, repeat, device, settings, check))
        watch((repeat + 1) / repeats)
    test, val = ([value for one in found for value in getattr(one, name)] for name in ("test", "val"))
    return {
        "check": check,
        "settings": json.loads(json.dumps({**asdict(settings), **point})),
        "test": round(100 * float(np.mean(test)), 2),
        "spread": round(100 * float(np.std(test)), 2),
        "validation": round(100 * float(np.mean(val)), 2) if val else None,
        "runs": len(test),
        "sha256": graph.provenance.sha256,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        **made_with(),
        "seconds": round(time.perf_counter() - started, 1),
    }


def _settings(system: System, check: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the system's settings, and the point of a classifier's grid."""
    options = {**(system.published_for(check["graph"]) or {}), **check.get("settings", {})}
    point = {}
    if "labels" in system.sees:
        usual = {"width": 64, "dropout": 0.5, "learning_rate": 0.01, "weight_decay": 5e-4}
        point = {name: options.pop(name, value) for name, value in usual.items()}
    return system.with_settings(options), point


def _split(graph: Graph, how: str, repeat: int) -> Graph:
    """Return the graph with its own splits, or with a random one of these shares in per cent."""
    if how == "own":
        return graph
    shares = [float(share) / 100 for share in how.split()[1].split("/")]
    assert graph.labels is not None
    masks = random_splits(
        graph.labels,
        generator=torch.Generator().manual_seed(repeat),
        splits=1,
        train_share=shares[0],
        val_share=shares[1],
    )
    own, val, test = masks
    return replace(graph, train_mask=own, val_mask=val, test_mask=test)


def _nodes(graph: Graph, device: torch.device) -> Nodes:
    parts = (graph.labels, graph.train_mask, graph.val_mask, graph.test_mask)
    return Nodes(*(part.to(device) for part in parts if part is not None))


def _classified(
    system: System, graph: Graph, seed: int, device: torch.device, settings: Any, point: dict[str, Any]
) -> Found:
    grid = [GridPoint(**point)]
    (found,) = predict(system.kind, graph, [seed], device=device, memory=MEMORY, grid=grid, settings=settings)
    nodes = _nodes(graph, torch.device("cpu"))
    right = (found.scores.argmax(dim=-1) == nodes.labels).float()
    val, test = (
        [float(right[split][mask[:, split]].mean()) for split in range(nodes.splits)]
        for mask in (nodes.val, nodes.test)
    )
    return Found(val, test)


def _embedded(
    system: System, graph: Graph, seed: int, device: torch.device, settings: Any, check: dict[str, Any]
) -> Found:
    """Train and score; where the epoch is chosen, each split has its own."""
    options, nodes, every = check["probe"], _nodes(graph, device), list[Found]()

    def score(rows: torch.Tensor) -> Found:
        if options["kind"] != "clusters":
            return probe(rows, nodes, options, seed)
        assert graph.labels is not None
        scores = cluster_scores(rows, graph.labels, seeds=(seed,))
        return Found([], scores[options.get("measure", "acc")])

    rule = check.get("epoch", "last")
    epochs = [] if rule == "last" else snapshot_epochs(settings.epochs, CANDIDATES)

    def keep(_: int, rows: torch.Tensor) -> None:
        every.append(score(rows))

    model = train(system.kind, graph, seed, device, settings, eval_epochs=epochs, callback=keep)
    if options.get("own"):
        with torch.no_grad():
            own = model.clusters()
        assert own is not None
        assert graph.labels is not None
        found = compare_clusters(own.cpu().numpy(), graph.labels.numpy())
        return Found([], [found[options.get("measure", "acc")]])
    if rule == "last":
        return score(embedding_of(model))
    by = "val" if rule == "validation" else "test"
    chosen = np.array([getattr(one, by) for one in every]).argmax(axis=0)
    return Found(
        [every[at].val[split] for split, at in enumerate(chosen)] if every[0].val else [],
        [every[at].test[split] for split, at in enumerate(chosen)],
    )
