"""The methods that can be compared: one list, and one way to run each.

A method either embeds a graph, and the caller scores its embeddings, or predicts the classes of each
split. A new system is a class of `h3gnn.baselines` with a card, see `h3gnn.baselines.registry`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from difflib import get_close_matches
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from h3gnn.answers.learning import LINKS, NEIGHBOURS, OWN
from h3gnn.baselines import Progress, unwatched
from h3gnn.baselines.classics import DIFFUSION, diffused_features, raw_features, smoothed_features
from h3gnn.baselines.embedder import train, values_of
from h3gnn.baselines.registry import GROUPS, Sizes, System, systems
from h3gnn.baselines.supervised import GRIDS, GridPoint, Predictions, part_of, predict
from h3gnn.baselines.typed import HGT, RGCN, JoinedBoosting, PathMeans, TypedNetwork, TypedSystem
from h3gnn.errors import InputError
from h3gnn.estimator import H3GNN
from h3gnn.experiments.spaces import ENSEMBLE, PAPER
from h3gnn.experiments.tabular import (
    CORRECTED,
    TREES,
    WALKS,
    Learner,
    TypedProblem,
    boosting,
    corrected,
    pooled_heads,
    predict_splits,
    propagation,
)
from h3gnn.graphs.graph import Graph
from h3gnn.training.loop import Snapshots
from h3gnn.training.resources import SHARE, free_bytes, pick_device
from h3gnn.tuned import preset

GRAPH = ("features", "edges")
"""The input of a method that learns without labels."""
STACK = {"cpu": 2**26, "cuda": 40 * 2**30}
"""Largest stack of supervised models in bytes. Larger stacks are no faster, and slower on a CPU (caches)."""
QUICK_EPOCHS = 20
"""Epochs of the settings "quick"; a classifier trains four times as long."""
SNAPSHOTS = 20
"""Number of epochs that are evaluated where the epoch is chosen."""

Callback = Callable[[int, Tensor], None]
"""Receives the number of epochs and the embedding `[nodes, D]`."""


@dataclass(frozen=True, eq=False)
class Task:
    """The input of one training for each seed.

    `watch` receives the share of the work that is done. An embedding is reported after each of `eval_epochs`,
    or at the end of the training only. `problem` has the tables behind the graph of a type.
    """

    graph: Graph
    seeds: Sequence[int]
    device: torch.device
    settings: Mapping[str, Any]
    watch: Progress = unwatched
    eval_epochs: Sequence[int] = ()
    problem: TypedProblem | None = None


@dataclass(frozen=True)
class Method:
    """One way to classify nodes.

    Attributes:
        name, title: on the command line, and in tables.
        sees: the subset of "features", "edges" and "labels" that it learns from.
        embed: trains with the first seed of a task and reports embeddings; None for a classifier.
        predict: trains a classifier with every seed of a task; None for a method that embeds.
        settings: all settings that a result depends on, besides graph and seed.
        takes_settings: whether it also takes the user's settings of `H3GNN`.
        has_chance: whether the seed matters; without, one run is enough.
        predicts_numbers: whether it also predicts numbers; every embedding does.
        probe: the probe of its embedding.
        system: the description of a published system.
        typed: the system for several linked tables; such a method needs the problem of its task.
        ranges: the values that a search chooses from; a system has its own.
    """

    name: str
    title: str
    sees: tuple[str, ...]
    embed: Callable[[Task, Callback], None] | None = None
    predict: Callable[[Task], list[Predictions]] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    takes_settings: bool = False
    has_chance: bool = True
    predicts_numbers: bool = True
    probe: str = "logistic"
    system: System | None = None
    typed: type[TypedSystem] | None = None
    ranges: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    @property
    def supervised(self) -> bool:
        """Whether it is trained on labels; it then chooses everything on validation nodes."""
        return "labels" in self.sees

    def used_seeds(self, seeds: Sequence[int]) -> list[int]:
        """Return the seeds to train with: the first, if the seed does not matter."""
        return list(seeds) if self.has_chance else list(seeds)[:1]

    def with_settings(self, **changes: Any) -> Method:
        """Return the method with some settings changed."""
        return replace(self, settings={**self.settings, **changes})

    def report(self, task: Task, callback: Callback) -> None:
        """Train once and report the embeddings."""
        if self.embed is None:
            raise InputError(f"{self.title} is a classifier and has no embedding", code="no-embedding")
        self.embed(task, callback)


def embedding(system: System) -> Method:
    """Return a system that embeds a graph without labels as a method."""

    def embed_system(task: Task, callback: Callback) -> None:
        settings = checked_settings(system, task)
        model = train(
            system.kind,
            task.graph,
            task.seeds[0],
            task.device,
            settings,
            task.watch,
            eval_epochs=task.eval_epochs,
            callback=callback,
        )
        rows = values_of(model)
        if not task.eval_epochs:
            callback(0, torch.from_numpy(rows).to(task.device))

    chance, settings = system.kind.has_chance, asdict(system.settings)
    method = Method(system.name, system.title, system.sees, embed_system, settings=settings, system=system)
    return replace(method, has_chance=chance, probe="logistic" if chance else "features")


def features(
    name: str,
    title: str,
    of: Callable[..., npt.NDArray[np.float32]],
    settings: Mapping[str, Any],
    sees: tuple[str, ...] = GRAPH,
) -> Method:
    """Return a method that trains nothing: `of(graph, **settings)` returns `[nodes, D]`.

    The setting "rows" describes how the rows are scaled and is recorded only.
    """

    def embed_features(task: Task, callback: Callback) -> None:
        arguments = {key: value for key, value in task.settings.items() if key != "rows"}
        callback(0, torch.from_numpy(of(task.graph, **arguments)).to(task.device))

    return Method(name, title, sees, embed_features, settings=settings, has_chance=False, probe="features")


def estimator(
    name: str, title: str, ranges: Mapping[str, Sequence[Any]] = ENSEMBLE, **settings: Any
) -> Method:
    """Return `H3GNN` with the user's settings and some fixed ones, which a search does not vary."""
    own = {key: values for key, values in ranges.items() if key not in settings}

    def embed_h3gnn(task: Task, callback: Callback) -> None:
        settings = {**task.settings, "random_state": task.seeds[0], "device": str(task.device)}
        fit_and_report(H3GNN.from_settings(settings), task.graph, callback, task.eval_epochs)

    searched = {} if settings.get("epochs") == 0 else own
    return Method(name, title, GRAPH, embed_h3gnn, settings=settings, takes_settings=True, ranges=searched)


def as_printed(name: str, title: str, **settings: Any) -> Method:
    """Return the paper's method, with the ranges of its appendix for a search."""
    paper = {**preset("paper"), **settings}
    fixed = {key: value for key, value in paper.items() if key not in PAPER}
    return replace(estimator(name, title, PAPER, **fixed), settings=paper)


def supervised(system: System) -> Method:
    """Return a classifier that is trained on each split's training nodes as a method."""

    def predict_splits(task: Task) -> list[Predictions]:
        options = {"device": task.device, "settings": checked_settings(system, task), "watch": task.watch}
        memory = min(int(SHARE * free_bytes(task.device)), STACK.get(task.device.type, STACK["cpu"]))
        grid = [GridPoint(**point) for point in task.settings["grid"]]
        return predict(system.kind, task.graph, task.seeds, memory=memory, grid=grid, **options)

    title, settings = f"{system.title} (supervised)", {"grid": find_grid("small"), **asdict(system.settings)}
    method = Method(system.name, title, system.sees, predict=predict_splits, settings=settings, system=system)
    return replace(method, predicts_numbers=False)


def tabular(
    name: str,
    title: str,
    learner: Callable[[Graph], Learner],
    ranges: Mapping[str, Sequence[Any]],
    sees: tuple[str, ...],
    **grid: Sequence[Any],
) -> Method:
    """Return a classifier of tables or labels; by default it chooses among a grid of some settings."""

    def predict_nodes(task: Task) -> list[Predictions]:
        return [predict_splits(learner, task.graph, task.settings["grid"], task.watch)]

    usual = {key: values[0] for key, values in ranges.items()}
    settings = {"grid": [{**usual, **point} for point in _product(grid)]}
    sees = (*sees, "labels")
    return Method(
        name, title, sees, predict=predict_nodes, settings=settings, ranges=ranges, has_chance=False
    )


def typed(name: str, title: str, kind: type[TypedSystem], sees: tuple[str, ...] = GRAPH) -> Method:
    """Return a system for several linked tables as a method; its fields are the settings."""

    def fit(task: Task, seed: int) -> Tensor:
        assert task.problem is not None
        return task.problem.fit(kind(**task.settings), seed, task.device)

    def embed_tables(task: Task, callback: Callback) -> None:
        callback(0, fit(task, task.seeds[0]).to(task.device))

    def predict_tables(task: Task) -> list[Predictions]:
        found = []
        for at, seed in enumerate(task.seeds):
            scores = fit(task, seed)
            found.append(Predictions(scores, [{} for _ in scores]))
            task.watch((at + 1) / len(task.seeds))
        return found

    method = Method(name, title, sees, settings=vars(kind()), has_chance=kind.has_chance, typed=kind)
    if kind.embeds:
        return replace(method, embed=embed_tables, probe="features")
    numbers = not issubclass(kind, TypedNetwork)
    return replace(method, sees=(*sees, "labels"), predict=predict_tables, predicts_numbers=numbers)


def pooled(name: str, title: str) -> Method:
    """Return H3GNN with the heads of `h3gnn predict`, fitted to each split's training nodes."""

    def predict_pooled(task: Task) -> list[Predictions]:
        own, found = dict(task.settings), []
        head = own.pop("head")
        for at, seed in enumerate(task.seeds):
            model = H3GNN.from_settings({**own, "random_state": seed, "device": str(task.device)})
            embedding = model.fit(task.graph).embedding_
            part = part_of(task.watch, at, 1, len(task.seeds))
            found.append(pooled_heads(task.graph, embedding, head, seed, part))
        return found

    sees, settings = (*GRAPH, "labels"), {"head": "auto"}
    return Method(name, title, sees, predict=predict_pooled, settings=settings, takes_settings=True)


def checked_settings(system: System, task: Task) -> Any:
    """Return the settings of a system; reject a graph that is too large for it before training."""
    settings = system.with_settings({key: value for key, value in task.settings.items() if key != "grid"})
    system.check_memory(Sizes.of(task.graph), settings, free_bytes(task.device))
    return settings


def variant(method: Method, settings: str, graph: str | None = None) -> Method:
    """Return a system with other settings; the methods of H3GNN take the user's.

    Args:
        method: any.
        settings: "default" changes nothing; "published" takes the authors' settings for a graph, if known;
            "quick" trains for a few epochs and tries one point of the grid.
        graph: name of a benchmark graph.
    """
    if method.system is None or settings == "default":
        return method.with_settings(**_quick(method)) if settings == "quick" else method
    usual = find_grid("small")[0]
    if settings == "quick":
        epochs = min(method.settings["epochs"], QUICK_EPOCHS * (4 if method.supervised else 1))
        return method.with_settings(epochs=epochs, **({"grid": [usual]} if method.supervised else {}))
    changes = method.system.published_for(graph)
    if changes is None:
        return method
    if not method.supervised:
        return method.with_settings(**changes)
    point = {one.name: changes.pop(one.name) for one in fields(GridPoint) if one.name in changes}
    return method.with_settings(**changes, grid=[{**usual, **point}])


def _quick(method: Method) -> dict[str, Any]:
    """Return changes to the settings of a method without a card: few epochs, one value of each choice."""
    own = method.settings
    if method.typed is None:
        one = {"grid": own["grid"][:1]} if "grid" in own else {}
        return one | ({"head": "logistic"} if "head" in own else {})
    few: dict[str, Any] = {name: value[:1] for name, value in own.items() if isinstance(value, tuple)}
    return few | ({"epochs": min(4 * QUICK_EPOCHS, own["epochs"])} if "epochs" in own else {})


def given(
    title: str, values: Tensor, settings: Mapping[str, Any], *, epoch: int = 0, probe: str = "logistic"
) -> Method:
    """Return an existing embedding `[nodes, D]`, trained for `epoch` epochs, as a method."""

    def embed_given(task: Task, callback: Callback) -> None:
        callback(epoch, values.to(task.device))

    return Method("given", title, (), embed_given, settings=settings, probe=probe)


def find_grid(name: str) -> list[dict[str, Any]]:
    """Return the points of a grid as plain values."""
    if name not in GRIDS:
        raise InputError(f"unknown grid {name!r}; the grids are {', '.join(GRIDS)}", code="unknown-grid")
    return [asdict(point) for point in GRIDS[name]]


def grid_of(method: Method, name: str) -> list[dict[str, Any]]:
    """Return the points of a grid for a supervised method; those without a card have grids of their own."""
    points = find_grid(name)
    if method.system is not None:
        return points
    return list(_product(method.ranges)) if name == "full" else list(method.settings["grid"])


def _product(choices: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    for values in product(*choices.values()):
        yield dict(zip(choices, values, strict=True))


LEAVES = {name: TREES[name] for name in ("max_leaf_nodes", "min_samples_leaf")}
_UNIT = {"rows": "unit length"}
_LISTED = (
    features("raw", "raw features", raw_features, {}, sees=("features",)),
    features("smoothed", "features + neighbours", smoothed_features, {"hops": 1, **_UNIT}),
    features("smoothed2", "features + two hops", smoothed_features, {"hops": 2, **_UNIT}),
    features("diffused", "diffused features", diffused_features, {"smoothing": DIFFUSION, **_UNIT}),
    tabular("boosting", "boosting", boosting(OWN), TREES, ("features",), **LEAVES),
    tabular(
        "boosting-neighbours",
        "boosting + neighbours",
        boosting(OWN, LINKS, NEIGHBOURS),
        TREES,
        GRAPH,
        **LEAVES,
    ),
    tabular(
        "label-propagation", "label propagation", propagation, WALKS, ("edges",), restart=WALKS["restart"]
    ),
    replace(
        tabular(
            "correct-smooth",
            "Correct & Smooth",
            corrected,
            CORRECTED,
            GRAPH,
            base=("linear", "boosting"),
            restart=(0.2, 0.5),
        ),
        predicts_numbers=False,
    ),
    typed("path-means", "path means", PathMeans),
    typed("joined-boosting", "boosting, joined columns", JoinedBoosting),
    typed("rgcn", "R-GCN (supervised)", RGCN),
    typed("hgt", "HGT (supervised)", HGT),
    estimator("untrained", "untrained encoder", epochs=0),
    *((supervised if "labels" in system.sees else embedding)(system) for system in systems().values()),
    estimator("decoder", "encoder–decoder", objective="features"),
    estimator("masked-features", "GraphMAE's objective", objective="masked-features", mask="random"),
    as_printed("paper-diffi", "the paper's method, Diffi", mask="difficulty"),
    as_printed("paper-prob", "the paper's method, Prob", mask="probability"),
    estimator("h3gnn", "H3GNN"),
    pooled("h3gnn-predict", "H3GNN predict"),
)
METHODS: dict[str, Method] = {method.name: method for method in _LISTED}
"""All methods by name, simple ones first."""


def find_methods(names: str, *, tables: bool = False) -> list[Method]:
    """Return the methods of a list such as `raw,gcn,h3gnn`, in the order of `METHODS`.

    The name of a group selects its systems and H3GNN; `all` selects every method, those for several linked
    tables only with `tables`.
    """
    given = [one.strip().lower() for one in names.split(",") if one.strip()]
    requested = {one: _expand(one, tables=tables) for one in given}
    unknown = [name for name, found in requested.items() if not found]
    if unknown or not requested:
        near = [one for name in unknown for one in get_close_matches(name, METHODS, 1, 0.6)]
        raise InputError(
            f"unknown method {', '.join(map(repr, unknown)) or repr(names)}"
            + (f"; did you mean {', '.join(near)}?" if near else ".")
            + f" The methods are {', '.join(METHODS)}; {', '.join(('all', *GROUPS))} select several",
            code="unknown-method",
        )
    return [method for name, method in METHODS.items() if any(name in found for found in requested.values())]


def _expand(name: str, *, tables: bool) -> list[str]:
    """Return the methods that a name selects: by name, group or the title of a system."""
    if name == "all":
        return [key for key, method in METHODS.items() if tables or method.typed is None]
    if name in METHODS:
        return [name]
    systems_by_name = {one.name: one.system for one in METHODS.values() if one.system}
    if name in GROUPS:
        return [*(key for key, system in systems_by_name.items() if system.group == name), "h3gnn"]
    return [key for key, system in systems_by_name.items() if system.title.lower() == name]


def fit_and_report(model: H3GNN, graph: Graph, callback: Callback, eval_epochs: Sequence[int] = ()) -> None:
    """Fit a model and report its embedding after some epochs, or at the end.

    Models that do not fit into memory together train in groups; their embeddings are joined first.
    """
    if not eval_epochs:
        model.fit(graph)
        callback(model.epochs, torch.from_numpy(model.embedding_).to(pick_device(model.device)))
        return
    waiting: dict[int, list[Tensor]] = {}

    def join(epoch: int, models: range, embedding: Tensor) -> None:
        if len(models) < model.n_models:
            waiting.setdefault(epoch, []).append(embedding.cpu())
            if models.stop < model.n_models:
                return
            embedding = torch.cat(waiting.pop(epoch), dim=1).to(embedding.device)
        callback(epoch, embedding)

    model.fit(graph, snapshots=Snapshots(eval_epochs, join))


def snapshot_epochs(epochs: int, count: int | Sequence[int] = SNAPSHOTS) -> list[int]:
    """Return at most `count` evenly spaced epochs up to the last one, or the given ones that are trained."""
    if epochs == 0:
        return [0]
    if not isinstance(count, int):
        return [epoch for epoch in count if epoch <= epochs]
    spaced = np.linspace(0, epochs, min(count, epochs) + 1)[1:]
    return sorted({round(float(epoch)) for epoch in spaced})
