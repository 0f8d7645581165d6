"""The methods that can be compared: one list, and one way to run each.

A new system is a class of `h3gnn.baselines` with a card, see `h3gnn.baselines.registry`. One that embeds is
probed; a classifier is trained on each split's labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from difflib import get_close_matches
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from h3gnn.baselines import Progress, unwatched
from h3gnn.baselines.classics import DIFFUSION, diffused_features, raw_features, smoothed_features
from h3gnn.baselines.embedder import Looks, embed
from h3gnn.baselines.registry import GROUPS, Sizes, System, systems
from h3gnn.baselines.stacks import GridPoint
from h3gnn.baselines.supervised import GRIDS, Predictions, part_of, predict
from h3gnn.errors import InputError
from h3gnn.estimator import H3GNN
from h3gnn.evaluation.evaluator import Judge
from h3gnn.experiments.spaces import COMMITTEE, PAPER
from h3gnn.graphs.graph import Graph
from h3gnn.settings import preset
from h3gnn.training.loop import Snapshots
from h3gnn.training.resources import SHARE, free_bytes, pick_device

GRAPH = ("features", "edges")
"""What a method sees that learns without labels."""
STACK = {"cpu": 2**26, "cuda": 40 * 2**30}
"""Bytes of a stack of supervised models; larger ones are no faster.

On a CPU they are slower: what a few models share lies in a cache, and stacks train beside one another.
"""
QUICK_EPOCHS = 20
"""Epochs of a quick look; a classifier has four times as many."""
SNAPSHOTS = 20
"""At so many points of the training may the epoch be chosen, where it is chosen."""


@dataclass(frozen=True, eq=False)
class Task:
    """What a method is given to do.

    Attributes:
        graph: with labels and splits.
        seeds: one training each.
        device: where to train.
        settings: the method's own, with what was changed in them.
        watch: told the share of the work that is done.
        snapshots: at how many points of a training the epoch may be chosen, where it is chosen; or at which.
    """

    graph: Graph
    seeds: Sequence[int]
    device: torch.device
    settings: Mapping[str, Any]
    watch: Progress = unwatched
    snapshots: int | Sequence[int] = SNAPSHOTS


Outcome = Callable[[Judge], None] | Predictions
"""What becomes of one seed: a training that shows a judge its embeddings, or predictions for each split."""


@dataclass(frozen=True)
class Method:
    """One way to classify nodes.

    Attributes:
        name: as the command line knows it.
        title: as tables show it.
        sees: which of "features", "edges" and "labels" it learns from.
        train: from a task to one outcome for each of its seeds, in their order.
        settings: its own, all that a result depends on beside graph and seed.
        takes_settings: whether the settings of `H3GNN` that a user gives are its own too.
        has_chance: whether seeds matter; without chance one run says all.
        probe: the probe of its embedding.
        system: what is known about it, where it is somebody else's.
        ranges: the values of its settings that a search chooses from; a system has its own.
    """

    name: str
    title: str
    sees: tuple[str, ...]
    train: Callable[[Task], Iterable[Outcome]]
    settings: Mapping[str, Any] = field(default_factory=dict)
    takes_settings: bool = False
    has_chance: bool = True
    probe: str = "logistic"
    system: System | None = None
    ranges: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    @property
    def supervised(self) -> bool:
        """Whether it is trained on labels; all that it chooses it then chooses on validation nodes."""
        return "labels" in self.sees

    def with_settings(self, **changes: Any) -> Method:
        """Return the method with some settings changed."""
        return replace(self, settings={**self.settings, **changes})


def embedding(system: System) -> Method:
    """Return a system that embeds a graph without labels as a method."""

    def train(task: Task, seed: int, watch: Progress, judge: Judge) -> None:
        settings = checked_settings(system, task)
        looked_at = [] if judge.epoch_rule == "last" else snapshot_epochs(settings.epochs, task.snapshots)
        looks = Looks(looked_at, judge.add)
        rows = embed(system.kind, task.graph, seed, task.device, settings, watch, looks)
        if not looked_at:
            _show(judge, rows, task.device)

    return Method(
        system.name,
        system.title,
        system.sees,
        _each_seed(train),
        asdict(system.settings),
        has_chance=system.kind.has_chance,
        probe="logistic" if system.kind.has_chance else "features",
        system=system,
    )


def features(
    name: str,
    title: str,
    of: Callable[..., npt.NDArray[np.float32]],
    settings: Mapping[str, Any],
    sees: tuple[str, ...] = GRAPH,
) -> Method:
    """Return a method that trains nothing: features, or what neighbours make of them.

    Args:
        name, title, sees: of the method.
        of: from a graph, with the settings as arguments, to `[nodes, D]`.
        settings: beside them may stand how the rows were made, `"rows"`, which is said and not passed on.
    """

    def train(task: Task, seed: int, watch: Progress, judge: Judge) -> None:
        arguments = {key: value for key, value in task.settings.items() if key != "rows"}
        _show(judge, of(task.graph, **arguments), task.device)

    return Method(name, title, sees, _each_seed(train), settings, has_chance=False, probe="features")


def estimator(
    name: str, title: str, ranges: Mapping[str, Sequence[Any]] = COMMITTEE, **settings: Any
) -> Method:
    """Return `H3GNN` with a user's settings, some of them changed; a search leaves those as they are."""
    own = {key: values for key, values in ranges.items() if key not in settings}

    def train(task: Task, seed: int, watch: Progress, judge: Judge) -> None:
        fit_and_judge(_estimator(task, seed), task.graph, judge, task.snapshots)

    searched = {} if settings.get("epochs") == 0 else own
    return Method(name, title, GRAPH, _each_seed(train), settings, takes_settings=True, ranges=searched)


def as_printed(name: str, title: str, **settings: Any) -> Method:
    """Return the paper's method: the structure as printed, and its appendix's ranges for a search."""
    fixed = {key: value for key, value in {**preset("paper"), **settings}.items() if key not in PAPER}
    usual = {key: value for key, value in preset("paper").items() if key in PAPER and key not in settings}
    own = {key: values for key, values in PAPER.items() if key not in settings}
    method = estimator(name, title, own, **fixed)
    return replace(method, settings={**fixed, **usual})


def supervised(system: System) -> Method:
    """Return a classifier that is trained on each split's training nodes as a method."""

    def train(task: Task) -> list[Predictions]:
        settings = checked_settings(system, task)
        return predict(
            system.kind,
            task.graph,
            task.seeds,
            device=task.device,
            memory=min(int(SHARE * free_bytes(task.device)), STACK.get(task.device.type, STACK["cpu"])),
            grid=[GridPoint(**point) for point in task.settings["grid"]],
            settings=settings,
            watch=task.watch,
        )

    settings = {"grid": find_grid("small"), **asdict(system.settings)}
    return Method(system.name, f"{system.title} (supervised)", system.sees, train, settings, system=system)


def checked_settings(system: System, task: Task) -> Any:
    """Return a system's settings; a graph that is too large for it is refused before its training begins."""
    settings = system.with_settings({key: value for key, value in task.settings.items() if key != "grid"})
    system.check_memory(Sizes.of(task.graph), settings, free_bytes(task.device))
    return settings


def variant(method: Method, settings: str, graph: str | None = None) -> Method:
    """Return a method with other settings than its own.

    Args:
        method: any.
        settings: "default" changes nothing; "published" takes those of a system's authors for a graph, where
            they are known; "quick" trains for a few epochs, and tries one point of a grid.
        graph: its name, where it is a benchmark.
    """
    if settings == "quick":
        return _quick(method)
    if settings == "default":
        return method
    changes = None if method.system is None else method.system.published_for(graph)
    if changes is None:
        return method
    if not method.supervised:
        return method.with_settings(**changes)
    point = {one.name: changes.pop(one.name) for one in fields(GridPoint) if one.name in changes}
    usual = find_grid("small")[0]
    return method.with_settings(**changes, grid=[{**usual, **point}])


def _quick(method: Method) -> Method:
    """Return a system's method that ends soon; those of our own take the settings that a user gives."""
    if method.system is None:
        return method
    epochs = min(method.settings["epochs"], QUICK_EPOCHS * (4 if method.supervised else 1))
    grid = {"grid": find_grid("small")[:1]} if method.supervised else {}
    return method.with_settings(epochs=epochs, **grid)


def given(
    title: str, values: torch.Tensor, settings: Mapping[str, Any], *, epoch: int = 0, probe: str = "logistic"
) -> Method:
    """Return an embedding `[nodes, D]` that is there already, trained for so many epochs, as a method."""

    def train(task: Task) -> Iterable[Outcome]:
        return [lambda judge: judge.add(epoch, values.to(task.device))]

    return Method("given", title, (), train, settings, probe=probe)


def find_grid(name: str) -> list[dict[str, Any]]:
    """Return the points of a grid by its name, as plain values."""
    if name not in GRIDS:
        raise InputError(f"there is no grid {name!r}; the grids are {', '.join(GRIDS)}")
    return [asdict(point) for point in GRIDS[name]]


def _each_seed(train: Callable[[Task, int, Progress, Judge], None]) -> Callable[[Task], Iterable[Outcome]]:
    """Return what trains one seed after another, each when its judge is there."""

    def trainings(task: Task) -> Iterable[Outcome]:
        many = len(task.seeds)
        return [partial(train, task, s, part_of(task.watch, i, 1, many)) for i, s in enumerate(task.seeds)]

    return trainings


def _estimator(task: Task, seed: int) -> H3GNN:
    return H3GNN.from_settings({**task.settings, "random_state": seed, "device": str(task.device)})


def _show(judge: Judge, values: npt.NDArray[np.float32], device: torch.device) -> None:
    judge.add(0, torch.from_numpy(values).to(device))


_UNIT = {"rows": "unit length"}
_LISTED = (
    features("raw", "raw features", raw_features, {}, sees=("features",)),
    features("smoothed", "features + neighbours", smoothed_features, {"hops": 1, **_UNIT}),
    features("smoothed2", "features + two hops", smoothed_features, {"hops": 2, **_UNIT}),
    features("diffused", "diffused features", diffused_features, {"smoothing": DIFFUSION, **_UNIT}),
    estimator("untrained", "untrained encoder", epochs=0),
    *((supervised if "labels" in system.sees else embedding)(system) for system in systems().values()),
    estimator("decoder", "encoder–decoder", objective="features"),
    estimator("masked-features", "GraphMAE's objective", objective="masked-features", mask="random"),
    as_printed("paper-diffi", "the paper's method, Diffi", mask="difficulty"),
    as_printed("paper-prob", "the paper's method, Prob", mask="probability"),
    estimator("h3gnn", "H3GNN"),
)
METHODS: dict[str, Method] = {method.name: method for method in _LISTED}
"""All methods by name, simple ones first."""


def find_methods(names: str) -> list[Method]:
    """Return the methods of a list such as `raw,gcn,h3gnn`, in the order of `METHODS`.

    A group's name stands for its systems with H3GNN, and `all` for everything.
    """
    asked = [name.strip().lower() for name in names.split(",") if name.strip()]
    found = {name for one in asked for name in _meant(one)}
    unknown = [name for name in asked if not _meant(name)]
    if unknown or not asked:
        near = [one for name in unknown for one in get_close_matches(name, METHODS, 1, 0.6)]
        raise InputError(
            f"there is no method {', '.join(map(repr, unknown)) or repr(names)}"
            + (f"; did you mean {', '.join(near)}?" if near else "")
            + f" There are {', '.join(METHODS)}, and {', '.join(('all', *GROUPS))} for many at once"
        )
    return [method for name, method in METHODS.items() if name in found]


def _meant(name: str) -> list[str]:
    if name == "all":
        return list(METHODS)
    if name in GROUPS:
        own = [method.name for method in METHODS.values() if method.system and method.system.group == name]
        return [*own, "h3gnn"]
    if name in METHODS:
        return [name]
    return [one.name for one in METHODS.values() if one.system and one.system.title.lower() == name]


def fit_and_judge(
    model: H3GNN, graph: Graph, judge: Judge, snapshots: int | Sequence[int] = SNAPSHOTS
) -> None:
    """Fit a model and show the judge the epochs that its rule needs: the last, or some on the way."""
    if judge.epoch_rule == "last":
        model.fit(graph)
        judge.add(model.epochs, torch.from_numpy(model.embedding_).to(pick_device(model.device)))
        return
    model.fit(graph, snapshots=Snapshots(snapshot_epochs(model.epochs, snapshots), judge.take))


def snapshot_epochs(epochs: int, many: int | Sequence[int] = SNAPSHOTS) -> list[int]:
    """Return up to so many epochs, evenly spaced, the last one among them and never the untrained start.

    Epochs that are given are those; ones beyond the end are left out.
    """
    if epochs == 0:
        return [0]
    if not isinstance(many, int):
        return [epoch for epoch in many if epoch <= epochs]
    spaced = np.linspace(0, epochs, min(many, epochs) + 1)[1:]
    return sorted({round(float(epoch)) for epoch in spaced})
