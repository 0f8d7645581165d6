"""What is known about a system: its paper, what it sees, its settings, what it costs and cannot take."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from numbers import Integral, Real
from typing import Any, NamedTuple

from h3gnn.errors import InputError
from h3gnn.graphs.graph import Graph
from h3gnn.resources import format_bytes

GROUPS = ("self-supervised", "supervised", "clustering")
"""What a system was made for; `--methods` takes a group's name for all of its systems."""
SCALINGS = ("auto", "none", "rows", "columns", "sums")
"""What may be done to the features first."""
ANY = ""
"""The graph under which settings stand that a system's authors use everywhere."""


class Sizes(NamedTuple):
    """How large a graph is; edges are counted both ways."""

    nodes: int
    edges: int
    features: int

    @classmethod
    def of(cls, graph: Graph) -> Sizes:
        """Return those of a graph."""
        return cls(graph.num_nodes, 2 * graph.num_edges, graph.num_features)

    def shrunk(self, nodes: int) -> Sizes:
        """Return those of a smaller graph with as many edges per node."""
        return Sizes(nodes, self.edges * nodes // max(1, self.nodes), self.features)


@dataclass(frozen=True)
class System:
    """One system: an entry of the list of all of them.

    Attributes:
        name: as the command line knows it.
        title: as tables show it.
        estimator: the name of its scikit-learn estimator in `h3gnn.baselines`.
        group: one of `GROUPS`.
        paper: authors, title and venue, in a line.
        year: of the paper.
        sees: which of "features", "edges" and "labels" it learns from.
        kind: its class, an `Embedder` or a `Classifier`.
        settings: a frozen dataclass, the defaults: the same for every graph.
        cost: what takes its time and memory, in words.
        ranges: the values of each setting that a search chooses from.
        published: its authors' settings by graph, `ANY` for those that they use everywhere: what differs from
            the defaults. Of a classifier also `width`, `dropout`, `learning_rate` and `weight_decay`.
        source: where the published settings are from.
        most_nodes: on a larger graph nobody would wait for it; None where memory alone decides.
        on_test: where its authors' public code chooses on test nodes; "" where it does not.
    """

    name: str
    title: str
    estimator: str
    group: str
    paper: str
    year: int
    sees: tuple[str, ...]
    kind: Any
    settings: Any
    cost: str
    ranges: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    published: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    source: str = ""
    on_test: str = ""
    most_nodes: int | None = None

    def published_for(self, graph: str | None) -> dict[str, Any] | None:
        """Return what its authors change on a graph; None where they are not known to have run on it."""
        if not self.published or not (ANY in self.published or graph in self.published):
            return None
        return {**self.published.get(ANY, {}), **self.published.get(graph or ANY, {})}

    def with_settings(self, changes: Mapping[str, Any]) -> Any:
        """Return the settings with some changed."""
        unknown = [name for name in changes if name not in asdict(self.settings)]
        if unknown:
            known = ", ".join(asdict(self.settings))
            raise InputError(f"{self.title} has no setting {', '.join(unknown)}; its settings are {known}")
        for name, value in changes.items():
            check_setting(self.title, name, value, getattr(self.settings, name))
        return replace(self.settings, **changes)

    def check_room(self, sizes: Sizes, settings: Any, free: int) -> None:
        """Refuse a graph that needs more memory or time than there is, with the size that could be taken.

        Raises:
            TooLargeError: with the sentence.
        """
        if self.most_nodes is not None and sizes.nodes > self.most_nodes:
            raise TooLargeError(
                f"{self.title} would take hours on {sizes.nodes:,} nodes ({self.cost}): it is run on up to "
                f"{self.most_nodes:,}"
            )
        needed = self.kind.bytes_for(sizes, settings)
        if needed <= free:
            return
        low, high = 0, sizes.nodes
        while high - low > 1:
            middle = (low + high) // 2
            fits = self.kind.bytes_for(sizes.shrunk(middle), settings) <= free
            low, high = (middle, high) if fits else (low, middle)
        raise TooLargeError(
            f"{self.title} would take {format_bytes(needed)} on {sizes.nodes:,} nodes ({self.cost}), and "
            f"{format_bytes(free)} are free: about {_rounded(low):,} nodes with as many edges each would fit"
        )


def check_setting(title: str, name: str, value: Any, usual: Any) -> None:
    """Refuse a value of another kind than the default, or beyond what any such setting can mean."""
    if isinstance(usual, tuple):
        if not isinstance(value, (tuple, list)) or not value:
            raise InputError(f"{title}: {name} takes several values, such as {usual}, not {value!r}")
        for one in value:
            check_setting(title, name, one, usual[0])
    elif isinstance(usual, (bool, str)):
        if not isinstance(value, type(usual)):
            raise InputError(f"{title}: {name} must be like {usual!r}, not {value!r}")
        if name == "scale_features" and value not in SCALINGS:
            raise InputError(f"{title}: scale_features must be one of {', '.join(SCALINGS)}, not {value!r}")
    elif isinstance(usual, int):
        least = 1 if name == "width" else 0
        if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
            raise InputError(f"{title}: {name} must be a whole number from {least}, not {value!r}")
    elif isinstance(usual, float):
        share = any(word in name for word in ("drop", "ratio", "momentum"))
        if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
            raise InputError(f"{title}: {name} must be a number, not {value!r}")
        if share and not 0 <= float(value) <= 1:
            raise InputError(f"{title}: {name} must be from 0 to 1, not {value!r}")


class TooLargeError(InputError):
    """A graph that a system cannot take for its size."""


def _rounded(nodes: int) -> int:
    """Return a number down to two digits."""
    scale = int(10 ** max(0, len(str(nodes)) - 2))
    return nodes // scale * scale
