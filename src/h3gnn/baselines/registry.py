"""The registry of all systems: one card per system, stored as data in `cards/GROUP.toml`.

A new system is a class in one of this package's modules and a card that names the class. A card holds the
paper, the authors' settings, the search space and the published figures; the defaults are in the class.
"""

from __future__ import annotations

import math
import tomllib
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cache, cached_property
from importlib import import_module, resources
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from h3gnn.errors import InputError
from h3gnn.resources import format_bytes

if TYPE_CHECKING:  # the cards are read without torch
    from h3gnn.graphs.graph import Graph

GROUPS = ("self-supervised", "supervised", "clustering")
"""The task that a system was designed for; `--methods` takes a group's name for all of its systems."""
SCALINGS = ("auto", "none", "rows", "columns", "sums")
"""Scalings of the features before training."""
ANY = "everywhere"
"""The key of the published settings that the authors use on every graph."""


class Sizes(NamedTuple):
    """The size of a graph; edges are counted in both directions."""

    nodes: int
    edges: int
    features: int

    @classmethod
    def of(cls, graph: Graph) -> Sizes:
        return cls(graph.num_nodes, 2 * graph.num_edges, graph.num_features)

    def shrunk(self, nodes: int) -> Sizes:
        """Return the sizes of a smaller graph with the same average degree."""
        return Sizes(nodes, self.edges * nodes // max(1, self.nodes), self.features)


class System(
    msgspec.Struct, frozen=True, kw_only=True, dict=True, forbid_unknown_fields=True, rename={"path": "class"}
):
    """The card of one system.

    Attributes:
        name, title: on the command line, and in tables.
        estimator: name of its scikit-learn estimator in `h3gnn.baselines`.
        path: module and name of its class, an `Embedder` or a `Classifier`.
        paper: authors, title and venue.
        sees: the inputs it learns from.
        cost: the operations that dominate its time and memory.
        ranges: the values of each setting in the search space.
        published: the authors' settings by graph, as differences from the defaults; `ANY` holds those for
            all graphs. For a classifier also `width`, `dropout`, `learning_rate` and `weight_decay`.
        source: where the published settings come from.
        figures: published results that `benchmarks.checks` measures again.
        on_test: where the authors' public code selects on test nodes; "" where it does not.
        most_nodes: the largest graph that trains in reasonable time; None where only memory limits it.
    """

    name: str
    title: str
    estimator: str
    group: Literal["self-supervised", "supervised", "clustering"]
    path: str
    paper: str
    year: int
    sees: tuple[Literal["features", "edges", "labels"], ...]
    cost: str
    ranges: dict[str, tuple[Any, ...]] = {}
    published: dict[str, dict[str, Any]] = {}
    source: str = ""
    figures: tuple[dict[str, Any], ...] = ()
    on_test: str = ""
    most_nodes: int | None = None

    @cached_property
    def kind(self) -> Any:
        """The class of the system, imported on first use."""
        module, name = self.path.split(".")
        return getattr(import_module(f"h3gnn.baselines.{module}"), name)

    @cached_property
    def settings(self) -> Any:
        """The default settings, a frozen dataclass."""
        return self.kind.settings_class()

    def published_for(self, graph: str | None) -> dict[str, Any] | None:
        """Return the authors' changes to the defaults on a graph; None where no settings are known."""
        if not self.published or not (ANY in self.published or graph in self.published):
            return None
        return {**self.published.get(ANY, {}), **self.published.get(graph or ANY, {})}

    def with_settings(self, changes: Mapping[str, Any]) -> Any:
        """Return the default settings with some changed."""
        unknown = [name for name in changes if name not in asdict(self.settings)]
        if unknown:
            known = ", ".join(asdict(self.settings))
            message = f"{self.title} has no setting {', '.join(unknown)}; its settings are {known}"
            raise InputError(message, code="unknown-setting")
        for name, value in changes.items():
            check_setting(self.title, name, value, getattr(self.settings, name))
        return replace(self.settings, **changes)

    def check_memory(self, sizes: Sizes, settings: Any, free: int) -> None:
        """Reject a graph that needs more memory or time than available (`TooLargeError`)."""
        if self.most_nodes is not None and sizes.nodes > self.most_nodes:
            raise TooLargeError(
                f"{self.title} would take hours on {sizes.nodes:,} nodes ({self.cost}); it runs on up to "
                f"{self.most_nodes:,} nodes",
                code="too-many-nodes",
            )
        needed = self.kind.bytes_for(sizes, settings)
        if needed <= free:
            return
        smaller = range(sizes.nodes)
        fit = bisect_right(smaller, free, key=lambda n: self.kind.bytes_for(sizes.shrunk(n), settings))
        scale = 10 ** max(0, len(str(fit - 1)) - 2)
        fitting = max(0, fit - 1) // scale * scale  # rounded down to two digits
        raise TooLargeError(
            f"{self.title} needs {format_bytes(needed)} on {sizes.nodes:,} nodes ({self.cost}), but only "
            f"{format_bytes(free)} are available; about {fitting:,} nodes of the same degree would fit",
            code="not-enough-memory",
        )


class TooLargeError(InputError):
    """A graph that is too large for a system."""


@cache
def systems() -> dict[str, System]:
    """Return all systems by name, in the order in which lists show them."""
    folder = resources.files("h3gnn.baselines") / "cards"
    found = {}
    for group in ("supervised", "self-supervised", "clustering"):
        cards = tomllib.loads((folder / f"{group}.toml").read_text(encoding="utf-8"))
        for name, card in cards.items():
            found[name] = msgspec.convert({"name": name, "group": group, **_tuples(card)}, System)
    return found


def check_setting(title: str, name: str, value: Any, default: Any) -> None:
    """Reject a value of another type than the default, or outside the range of such a setting."""

    def reject(expected: str) -> InputError:
        return InputError(f"{title}: {name} must be {expected}, not {value!r}", code="invalid-setting")

    if isinstance(default, tuple):
        if not isinstance(value, (tuple, list)) or not value:
            raise reject(f"several values, such as {default}")
        for item in value:
            check_setting(title, name, item, default[0])
    elif isinstance(default, (bool, str)):
        if not isinstance(value, type(default)):
            raise reject(f"like {default!r}")
        if name == "scale_features":
            check_choice(title, name, str(value), SCALINGS)
    elif isinstance(default, int):
        least = 1 if name == "width" else 0
        if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
            raise reject(f"an integer of at least {least}")
    elif isinstance(default, float):
        fraction = any(word in name for word in ("drop", "ratio", "momentum"))
        if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
            raise reject("a number")
        if fraction and not 0 <= float(value) <= 1:
            raise reject("from 0 to 1")


def check_choice(title: str, name: str, value: str, choices: tuple[str, ...]) -> None:
    """Reject a value that is not one of the choices."""
    if value not in choices:
        message = f"{title}: {name} must be one of {', '.join(choices)}, not {value!r}"
        raise InputError(message, code="invalid-setting")


def _tuples(value: Any) -> Any:
    """Replace lists by tuples, at any depth: settings compare equal and stay immutable."""
    if isinstance(value, dict):
        return {name: _tuples(item) for name, item in value.items()}
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
