"""Which method wins on a graph, and whether the difference is real."""

from __future__ import annotations

import html
import json
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from h3gnn.baselines import Progress
from h3gnn.baselines.registry import TooLargeError
from h3gnn.errors import InputError
from h3gnn.estimator import H3GNN
from h3gnn.evaluation.metrics import TITLES, LabelWarning, usable_splits
from h3gnn.evaluation.protocols import NESTED
from h3gnn.evaluation.results import TEST_TO_TRAIN, PairedTest, RepeatedScore, Result, paired_test
from h3gnn.experiments.methods import METHODS, Method, variant
from h3gnn.experiments.run import build_evaluator, method_params, run_method
from h3gnn.experiments.search import fix_settings, ranges_of, run_nested
from h3gnn.experiments.spaces import SearchBudget
from h3gnn.experiments.workers import Finished, in_processes
from h3gnn.graphs.graph import Graph
from h3gnn.storage.atomic import versions, write_atomically

COMPARISON_FORMAT = "h3gnn comparison"


@dataclass(frozen=True)
class Skipped:
    """Why a method has no result.

    Attributes:
        word: for a table: "too large" or "not here".
        why: the sentence.
    """

    word: str
    why: str

    @classmethod
    def of(cls, finished: Finished) -> Skipped:
        """Return what a failure means."""
        too_large = finished.fault == TooLargeError.__name__ or finished.out_of_memory
        return cls("too large" if too_large else "not here", finished.failure)


@dataclass(frozen=True, repr=False)
class Comparison:
    """Results of several methods on one graph, by the methods' names.

    Attributes:
        results: by name.
        test_to_train: test nodes per training node of a split, for the paired test.
        left_out: the methods that this graph is too large for, or that cannot take it, with the sentence that
            says why.
    """

    results: Mapping[str, Result]
    test_to_train: float
    left_out: Mapping[str, Skipped] = field(default_factory=dict)

    @property
    def leading(self) -> str:
        """The measure that ranks: accuracy, or where one class is rare one that cannot hide it.

        It hangs on the labels alone; a result without it, from before there was one, has only accuracy.
        """
        found = {result.leading for result in self.results.values()}
        return found.pop() if len(found) == 1 else "accuracy"

    def score(self, name: str) -> RepeatedScore:
        """Return a method's scores in the measure that leads."""
        return self.results[name].score(self.leading)

    @property
    def ranked(self) -> list[str]:
        """The names, best mean first in the measure that leads."""
        return sorted(self.results, key=lambda name: -self.score(name).mean)

    @property
    def reference(self) -> str:
        """What the others are compared with: H3GNN where it is among them, else the best."""
        return "h3gnn" if "h3gnn" in self.results else self.ranked[0]

    def test(self, name: str, other: str | None = None) -> PairedTest:
        """Return the paired test of a method against another, by default the reference."""
        first, second = self.score(name), self.score(other or self.reference)
        return paired_test(first, second, test_to_train=self.test_to_train)

    @property
    def verdict(self) -> str:
        """One sentence: which method wins here, and whether that is more than chance."""
        if len(self.results) < 2:
            return f"Only {self._title(self.ranked[0])} was run: there is nothing to compare it with."
        winner = self.ranked[0]
        other = self.reference if self.reference != winner else self.ranked[1]
        test = self.test(winner, other)
        first, second = self._title(winner), self._title(other)
        unit = "points" if self.leading == "accuracy" else f"points of {TITLES[self.leading]}"
        points = 100 * test.difference
        if test.n < 2:
            return (
                f"On this graph {first} scores {points:.1f} {unit} above {second}, but one split and one "
                "seed cannot tell that from chance: ask for more --seeds."
            )
        p_value = f"p = {test.p_value:.2g}"
        if test.differ:
            return (
                f"On this graph {first} wins: {points:.1f} {unit} above {second}, "
                f"which is more than chance ({p_value})."
            )
        if points < 0.05:
            return f"On this graph {first} and {second} score the same ({p_value})."
        return (
            f"On this graph {second} cannot be told from {first}: "
            f"the difference of {points:.1f} {unit} is within chance ({p_value})."
        )

    def __repr__(self) -> str:
        return f"Comparison({self.verdict})"

    def _repr_html_(self) -> str:
        """Show a notebook the methods, best first, and the verdict."""
        heading = html.escape(TITLES[self.leading])
        rows = "".join(
            f"<tr><th>{html.escape(self.results[name].method)}</th>"
            f"<td>{100 * self.score(name).mean:.1f} ± {100 * self.score(name).std:.1f} %</td></tr>"
            for name in self.ranked
        )
        head = f"<tr><th>method</th><th>{heading}</th></tr>"
        return f"<table>{head}{rows}</table><p>{html.escape(self.verdict)}</p>"

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, best method first."""
        rows = []
        for name in self.ranked:
            test = self.test(name)
            versus = {"difference": test.difference, "p_value": test.p_value, "n": test.n}
            rows.append({"name": name, **self.results[name].as_dict(), "against_reference": versus})
        return {
            "winner": self.ranked[0],
            "reference": self.reference,
            "leading": self.leading,
            "verdict": self.verdict,
            "rows": rows,
            "left_out": {name: {"word": one.word, "why": one.why} for name, one in self.left_out.items()},
        }

    @staticmethod
    def _title(name: str) -> str:
        return METHODS[name].title


@dataclass(frozen=True)
class Comparing:
    """What every method of a comparison is given.

    Attributes:
        graph: with labels and splits.
        seeds: of the trainings.
        model: the settings of H3GNN and its device.
        grid: of the supervised methods.
        name: of the graph, for the results.
        top: the k of recall at k; by default as many as the rare class has test nodes.
        settings: "default", "published" (its authors' settings for this graph, where they are known) or
            "quick" (few epochs).
        trials: so many settings of every method are tried, and each split chooses; 0 for its own alone.
        fixed: names of settings of H3GNN that no trial changes.
    """

    graph: Graph
    seeds: Sequence[int]
    model: H3GNN
    grid: str = "small"
    name: str | None = None
    top: int | None = None
    settings: str = "default"
    trials: int = 0
    fixed: Collection[str] = ()

    @property
    def _grid(self) -> str | None:
        """The grid by its name; None where the settings bring points of their own."""
        return self.grid if self.settings == "default" else None

    def method(self, name: str) -> Method:
        """Return a method as it is run here."""
        method = variant(METHODS[name], self.settings, self.name)
        return fix_settings(method, self.fixed, self.trials) if self.trials else method

    def run(self, name: str, watch: Progress) -> Result:
        """Run a method."""
        method = self.method(name)
        if self.trials and ranges_of(method):
            found = run_nested(
                method,
                self.graph,
                seeds=self.seeds,
                budget=SearchBudget(self.trials),
                model=self.model,
                device=self.model.device,
                name=self.name,
                top=self.top,
                watch=watch,
            )
            return found.results[NESTED.name]
        return run_method(
            method,
            self.graph,
            seeds=self.seeds,
            model=self.model,
            device=self.model.device,
            grid=self._grid,
            name=self.name,
            top=self.top,
            watch=watch,
        )

    def key(self, name: str) -> dict[str, Any]:
        """Return what a result depends on, as JSON would give it back."""
        method = self.method(name)
        described: dict[str, Any] = {
            "sha256": self.graph.provenance.sha256,
            "seeds": list(self.seeds) if method.has_chance else [],
            "params": method_params(method, self.model, self._grid),
            "measures": [*TITLES, self.top],
            "h3gnn": versions()["h3gnn"],
        }
        if self.trials and ranges_of(method):
            described["trials"] = self.trials
            held = sorted({*ranges_of(METHODS[name])} - {*ranges_of(method)})
            described |= {"fixed": held} if held else {}
        if self.settings == "quick":
            described["splits"] = self.graph.num_splits
        plain: dict[str, Any] = json.loads(json.dumps(described))
        return plain


def compare(
    methods: Sequence[Method],
    graph: Graph,
    *,
    seeds: Sequence[int],
    model: H3GNN,
    out: Path | None = None,
    jobs: int = 1,
    watch: Callable[[Method, float], None] = lambda method, share: None,
    reused: Callable[[Method, bool], None] | None = None,
    ended: Callable[[Method, Result | Skipped], None] | None = None,
    **options: Any,
) -> Comparison:
    """Run methods on a graph and compare them; one that cannot take the graph is left out with a word.

    Args:
        methods: which.
        graph: with labels and splits.
        seeds: of the trainings.
        model: the settings of H3GNN and its device.
        out: a file that holds each result as soon as it is there; what it already holds for the same graph,
            seeds and settings is not computed again.
        jobs: processes at once, one method in each.
        watch: told a method, and the share of its work that is done.
        reused: told the methods that were found in the file, and whether their results are taken from there:
            those of other settings are run again, and replaced.
        ended: told each method that was run, and its result.
        options: further attributes of `Comparing`.
    """
    refuse_unscorable(graph)
    comparing = Comparing(graph, seeds, model, **options)
    kept = {} if out is None else read_kept(out)
    results: dict[str, Result] = {}
    left_out: dict[str, Skipped] = {}
    build_evaluator(graph)  # says at once what labels and splits cannot give
    for method in methods:
        comparing.method(method.name)  # says at once if nothing is left to vary
        if method.name not in kept:
            continue
        stored = stored_result(kept[method.name], out, comparing.key(method.name))
        if stored is not None:
            results[method.name] = stored
        if reused is not None:
            reused(method, stored is not None)
    missing = [method.name for method in methods if method.name not in results]
    told = {method.name: partial(watch, method) for method in methods}
    for name, result in _run(comparing, missing, min(jobs, len(missing)), told):
        if ended is not None:
            ended(METHODS[name], result)
        if isinstance(result, Skipped):
            left_out[name] = result
            continue
        results[name] = result
        kept[name] = {"key": comparing.key(name), "result": result.as_dict()}
        if out is not None:
            _write(out, kept)
    results = {method.name: results[method.name] for method in methods if method.name in results}
    if not results:
        raise InputError("; ".join(one.why for one in left_out.values()))
    _check_alike(results, out)
    comparison = Comparison(results, _test_to_train(graph), left_out)
    if out is not None:
        _write(out, kept, comparison)
    return comparison


def _run(
    comparing: Comparing, names: Sequence[str], jobs: int, told: Mapping[str, Progress]
) -> Iterator[tuple[str, Result | Skipped]]:
    """Run methods, in this process or in several, and yield each as it ends.

    A sentence that a method has for the user leaves it out; anything else is a fault and ends the comparison.
    """
    if jobs <= 1:
        for name in names:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", LabelWarning)  # said once for all methods
                    result = comparing.run(name, told[name])
                yield name, result
            except InputError as error:
                yield name, Skipped.of(Finished(name, None, str(error), type(error).__name__))
        return
    for finished in in_processes(
        names, comparing.run, jobs, threads=1, watch=lambda name, share: told[name](share)
    ):
        if finished.record is not None:
            yield finished.task, finished.record
        elif finished.foreseen or finished.out_of_memory:
            yield finished.task, Skipped.of(finished)
        else:
            raise RuntimeError(f"{METHODS[finished.task].title}: {finished.fault}: {finished.failure}")


def refuse_unscorable(graph: Graph) -> None:
    """Refuse a graph on which no method has an accuracy, before any is trained."""
    if graph.labels is None or graph.train_mask is None or graph.test_mask is None:
        return
    if not usable_splits(graph.labels, graph.train_mask, graph.test_mask).any():
        raise InputError(
            f"{graph.provenance.source}: no split has labelled training and test nodes; label more nodes",
            code="no-usable-split",
        )


def read_kept(path: Path) -> dict[str, Any]:
    """Return the results of an earlier comparison by method; nothing without a file."""
    if not path.exists():
        return {}
    try:
        stored = json.loads(path.read_bytes())
        kept: dict[str, Any] = dict(stored["methods"]) if stored["format"] == COMPARISON_FORMAT else {}
    except (ValueError, KeyError, TypeError, RecursionError):
        kept = {}
    if not kept:
        raise InputError(f"{path} is not a file of `h3gnn compare`; choose another file", code="comparison")
    return kept


def stored_result(kept: Any, path: Path | None, key: dict[str, Any] | None = None) -> Result | None:
    """Return a stored result, or None where it belongs to other settings."""
    try:
        return Result.from_dict(kept["result"]) if key is None or kept["key"] == key else None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"{path} holds a damaged result; choose another file", code="comparison") from None


def _check_alike(results: Mapping[str, Result], out: Path | None) -> None:
    """Refuse results that are not of the same splits, which only a file that was changed can bring."""
    splits = {len(one.probe.values[0]) if one.probe.values else 0 for one in results.values()}
    seeds = {len(one.probe.values) for one in results.values()} - {1}
    beside = [
        (one.probe, score) for one in results.values() for score in (one.macro_f1, *one.secondary.values())
    ]
    unlike = any(list(map(len, score.values)) != list(map(len, probe.values)) for probe, score in beside)
    if len(splits) > 1 or len(seeds) > 1 or 0 in splits or unlike:
        raise InputError(
            f"{out} holds results of other splits or seeds; choose another file", code="comparison"
        )


def _write(path: Path, kept: dict[str, Any], comparison: Comparison | None = None) -> None:
    stored = {"format": COMPARISON_FORMAT, "comparison": None, "methods": kept}
    if comparison is not None:
        told = comparison.as_dict()
        rows = [{"name": row["name"], "against_reference": row["against_reference"]} for row in told["rows"]]
        stored["comparison"] = {**told, "rows": rows}
    text = json.dumps(stored, indent=1, ensure_ascii=False)
    write_atomically(path, text.encode(errors="backslashreplace"))


def _test_to_train(graph: Graph) -> float:
    if graph.train_mask is None or graph.test_mask is None or graph.labels is None:
        return TEST_TO_TRAIN
    known = (graph.labels >= 0)[:, None]
    return int((graph.test_mask & known).sum()) / max(1, int((graph.train_mask & known).sum()))
