"""Compare methods on a graph, with paired tests."""

from __future__ import annotations

import html
import json
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from h3gnn.baselines import Progress
from h3gnn.baselines.registry import TooLargeError
from h3gnn.errors import InputError
from h3gnn.estimator import H3GNN
from h3gnn.evaluation.metrics import NUMBER_TITLES, TITLES, LabelWarning, is_known, usable_splits
from h3gnn.evaluation.protocols import NESTED
from h3gnn.evaluation.results import ALL_TITLES, PairedTest, RepeatedScore, Result, formatted, paired_test
from h3gnn.experiments.methods import METHODS, Method, variant
from h3gnn.experiments.run import build_evaluator, labels_and_masks, method_params, run_method
from h3gnn.experiments.search import fix_settings, ranges_of, run_nested
from h3gnn.experiments.spaces import SearchBudget
from h3gnn.experiments.tabular import TypedProblem
from h3gnn.experiments.workers import Finished, in_processes
from h3gnn.graphs.graph import Graph, canonical_graph
from h3gnn.storage.atomic import versions, write_atomically

COMPARISON_FORMAT = "h3gnn comparison"


@dataclass(frozen=True)
class Skipped:
    """Why a method has no result.

    Attributes:
        word: for a table: "too large", "not here", "classes only", "tables only", "sees later rows", or
            "failed".
        why: a sentence.
        exit_code: of its process, if that ended before the method did.
    """

    word: str
    why: str
    exit_code: int | None = None

    @classmethod
    def before(cls, method: Method, graph: Graph, problem: TypedProblem | None) -> Skipped | None:
        """Return why a method cannot run at all; None if it can."""
        if graph.targets is not None and not method.predicts_numbers:
            return cls("classes only", f"{method.title} predicts classes only, and the label is a number")
        if method.typed is None:
            return None
        if problem is None:
            why = f"{method.title} needs several linked tables: `h3gnn compare SOURCE TABLE.COLUMN`"
            return cls("tables only", why)
        if problem.earlier_only and not method.typed.knows_time:
            why = f"{method.title} cannot leave out rows that are later than a label, and labels are of the"
            return cls("sees later rows", f"{why} time of their row")
        return None

    @classmethod
    def of(cls, finished: Finished) -> Skipped:
        """Return the reason of a failure; only an `InputError` or a lack of memory is none of the program."""
        if finished.exit_code is not None or not (finished.foreseen or finished.out_of_memory):
            what = finished.failure if finished.fault == "Lost" else f"{finished.fault}: {finished.failure}"
            remedy = f"run it alone (--methods {finished.task} --jobs 1)"
            why = f"{METHODS[finished.task].title} failed, {what}; {remedy}"
            return cls("failed", why, finished.exit_code)
        too_large = finished.fault == TooLargeError.__name__ or finished.out_of_memory
        return cls("too large" if too_large else "not here", finished.failure)


@dataclass(frozen=True, repr=False)
class Comparison:
    """Results of several methods on one graph, and the methods that cannot run on it, by name.

    `test_to_train`, the test nodes per training node of a split, corrects the paired test.
    """

    results: Mapping[str, Result]
    test_to_train: float
    left_out: Mapping[str, Skipped] = field(default_factory=dict)

    @property
    def failed(self) -> list[str]:
        """The methods that failed, rather than being unable to run on the graph."""
        return [name for name, one in self.left_out.items() if one.word == "failed"]

    @property
    def leading(self) -> str:
        """The measure that ranks: accuracy, or with a rare class one that is sensitive to it."""
        found = {result.leading for result in self.results.values()}
        return found.pop() if len(found) == 1 else "accuracy"  # results of older versions have no other

    def score(self, name: str) -> RepeatedScore:
        """Return a method's scores in the leading measure."""
        return self.results[name].score(self.leading)

    @property
    def ranked(self) -> list[str]:
        """The names, best mean of the leading measure first."""
        return sorted(self.results, key=lambda name: -self.score(name).mean)

    @property
    def reference(self) -> str:
        """The method that the others are compared with: H3GNN where it is among them, else the best."""
        ours = [name for name in ("h3gnn-predict", "h3gnn") if name in self.results]
        return (ours or self.ranked)[0]

    def test(self, name: str, other: str | None = None) -> PairedTest:
        """Return the paired test of a method against another, by default the reference."""
        first, second = self.score(name), self.score(other or self.reference)
        return paired_test(first, second, test_to_train=self.test_to_train)

    @property
    def verdict(self) -> str:
        """One sentence: the best method on this graph, and whether its lead is significant."""
        winner = self.ranked[0]
        first = self.results[winner].method
        if len(self.results) < 2:
            return f"Only {first} was run: there is nothing to compare it with."
        other = self.reference if self.reference != winner else self.ranked[1]
        test, second = self.test(winner, other), self.results[other].method
        unit = "points" if self.leading == "accuracy" else f"points of {ALL_TITLES[self.leading]}"
        points = f"{100 * test.difference:.1f} {unit}"
        if test.n < 2:
            return (
                f"On this graph {first} scores {points} above {second}; one split and one seed allow no "
                "test: use more --seeds."
            )
        p_value = f"p = {test.p_value:.2g}"
        if test.differ:
            return (
                f"On this graph {first} is best: {points} above {second}, a statistically significant "
                f"difference ({p_value})."
            )
        if 100 * test.difference < 0.05:
            return f"On this graph {first} and {second} score the same ({p_value})."
        return (
            f"On this graph the difference between {first} and {second} ({points}) is not statistically "
            f"significant ({p_value})."
        )

    def __repr__(self) -> str:
        return f"Comparison({self.verdict})"

    def _repr_html_(self) -> str:
        """Show a notebook the methods, best first, and the verdict."""
        rows = "".join(
            f"<tr><th>{html.escape(self.results[name].method)}</th>"
            f"<td>{formatted(self.leading, self.score(name))}</td></tr>"
            for name in self.ranked
        )
        head = f"<tr><th>method</th><th>{html.escape(ALL_TITLES[self.leading])}</th></tr>"
        return f"<table>{head}{rows}</table><p>{html.escape(self.verdict)}</p>"

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, best method first."""
        rows = []
        for name in self.ranked:
            test = self.test(name)
            versus = {"difference": test.difference, "p_value": test.p_value, "n": test.n}
            rows.append({"name": name, **self.results[name].as_dict(), "against_reference": versus})
        return {
            **{"winner": self.ranked[0], "reference": self.reference, "leading": self.leading},
            **{"verdict": self.verdict, "rows": rows},
            "left_out": {name: asdict(one) for name, one in self.left_out.items()},
        }


@dataclass(frozen=True)
class Comparing:
    """The input of every method of a comparison.

    Attributes:
        model: the settings of H3GNN and its device.
        grid: of the supervised methods.
        name: of the graph, for the results.
        top: the k of recall at k; by default the number of test nodes of the rare class.
        settings: "default", "published" (the authors', where they are known) or "quick" (few epochs).
        trials: number of settings of each method of which each split chooses; 0 for the method's own only.
        fixed: names of settings of H3GNN that no trial changes.
        problem: the tables behind the graph of a type.
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
    problem: TypedProblem | None = None

    @property
    def _grid(self) -> str | None:
        return self.grid if self.settings == "default" else None  # the others have their own points

    def method(self, name: str) -> Method:
        """Return a method with its settings in this comparison."""
        method = variant(METHODS[name], self.settings, self.name)
        return fix_settings(method, self.fixed, self.trials) if self.trials else method

    def run(self, name: str, watch: Progress) -> Result:
        """Run a method."""
        method = self.method(name)
        common: dict[str, Any] = {"seeds": self.seeds, "model": self.model, "device": self.model.device}
        common |= {"name": self.name, "top": self.top, "watch": watch}
        if self.trials and ranges_of(method):
            found = run_nested(method, self.graph, budget=SearchBudget(self.trials), **common)
            return found.results[NESTED.name]
        return run_method(method, self.graph, grid=self._grid, problem=self.problem, **common)

    def key(self, name: str) -> dict[str, Any]:
        """Return what a result depends on, as plain values."""
        method = self.method(name)
        seen = self.graph.provenance if method.typed is None else self.problem
        assert seen is not None
        described: dict[str, Any] = {
            "sha256": seen.sha256,
            "seeds": list(self.seeds) if method.has_chance else [],
            "params": method_params(method, self.model, self._grid),
            "measures": [*TITLES, self.top] if self.graph.targets is None else [*NUMBER_TITLES],
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
    graph: Graph | TypedProblem,
    *,
    seeds: Sequence[int],
    model: H3GNN,
    out: Path | None = None,
    jobs: int = 1,
    watch: Callable[[Method, float], None] = lambda method, share: None,
    reused: Callable[[Method, bool], None] = lambda method, same: None,
    ended: Callable[[Method, Result | Skipped], None] = lambda method, result: None,
    **options: Any,
) -> Comparison:
    """Run methods on a graph and compare them; a method that cannot run on the graph is left out.

    Args:
        methods, graph, seeds: methods of `METHODS`, and a graph with labels and splits, or several tables.
        model: the settings of H3GNN and its device.
        out: a file that stores each result as soon as it is there; stored results of the same graph, seeds
            and settings are not computed again.
        jobs: processes at once, one method in each.
        watch: receives a method, and the share of its work that is done.
        reused: receives the methods found in the file, and whether their results are used: those of other
            settings are run again, and replaced.
        ended: receives each method that was run, and its result.
        options: further attributes of `Comparing`.
    """
    problem = graph if isinstance(graph, TypedProblem) else None
    graph = canonical_graph(graph) if isinstance(graph, Graph) else graph.view
    test_to_train = _test_to_train(graph)
    comparing = Comparing(graph, seeds, model, problem=problem, **options)
    kept = {} if out is None else read_kept(out)
    results: dict[str, Result] = {}
    left_out: dict[str, Skipped] = {}
    build_evaluator(graph)  # rejects labels and splits that cannot be scored before the work
    for method in methods:
        comparing.method(method.name)  # rejects a search in which nothing varies
        unable = Skipped.before(method, graph, problem)
        if unable is not None:
            left_out[method.name] = unable
        elif method.name in kept:
            stored = stored_result(kept[method.name], out, comparing.key(method.name))
            if stored is not None:
                results[method.name] = stored
            reused(method, stored is not None)
    missing = [one.name for one in methods if one.name not in results and one.name not in left_out]
    for name, result in _run(comparing, missing, min(jobs, len(missing)), watch):
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
        failed = any(one.word == "failed" for one in left_out.values())
        code = "methods-failed" if failed else "no-method-runs"
        raise InputError("; ".join(one.why for one in left_out.values()), code=code)
    _check_alike(results, out)
    comparison = Comparison(results, test_to_train, left_out)
    if out is not None:
        _write(out, kept, comparison)
    return comparison


def _run(
    comparing: Comparing, names: Sequence[str], jobs: int, watch: Callable[[Method, float], None]
) -> Iterator[tuple[str, Result | Skipped]]:
    """Run methods and yield each as it ends; in processes, one that fails does not end the others."""
    if jobs <= 1:
        for name in names:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", LabelWarning)  # shown once for all methods
                    result = comparing.run(name, partial(watch, METHODS[name]))
                yield name, result
            except InputError as error:
                yield name, Skipped.of(Finished(name, None, str(error), type(error).__name__, True))
        return
    for finished in in_processes(
        names, comparing.run, jobs, threads=1, watch=lambda name, share: watch(METHODS[name], share)
    ):
        yield finished.task, Skipped.of(finished) if finished.record is None else finished.record


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
    """Reject results of different splits, which only an edited file can contain."""
    shapes = [[len(one) for one in result.probe.values] for result in results.values()]
    splits, seeds = {shape[0] if shape else 0 for shape in shapes}, {len(shape) for shape in shapes} - {1}
    others = [[one.macro_f1, *one.secondary.values()] for one in results.values()]
    unlike = any(
        [len(one) for one in score.values] != shape
        for shape, scores in zip(shapes, others, strict=True)
        for score in scores
    )
    if len(splits) > 1 or len(seeds) > 1 or 0 in splits or unlike:
        message = f"{out} holds results of other splits or seeds; choose another file"
        raise InputError(message, code="comparison")


def _write(path: Path, kept: dict[str, Any], comparison: Comparison | None = None) -> None:
    stored = {"format": COMPARISON_FORMAT, "comparison": None, "methods": kept}
    if comparison is not None:
        found = comparison.as_dict()
        rows = [{"name": row["name"], "against_reference": row["against_reference"]} for row in found["rows"]]
        stored["comparison"] = {**found, "rows": rows}
    text = json.dumps(stored, indent=1, ensure_ascii=False)
    write_atomically(path, text.encode(errors="backslashreplace"))


def _test_to_train(graph: Graph) -> float:
    """Return the test nodes per training node; reject a graph on which no method has an accuracy."""
    labels, train, _, test = labels_and_masks(graph)
    if not usable_splits(labels, train, test).any():
        raise InputError(
            f"{graph.provenance.source}: no split has labelled training and test nodes; label more nodes",
            code="no-usable-split",
        )
    known = is_known(labels)[:, None]
    return int((test & known).sum()) / max(1, int((train & known).sum()))
