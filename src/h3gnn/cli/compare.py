"""`h3gnn compare`: which method wins on this graph; `h3gnn tune`: which settings do."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from h3gnn.cli import options
from h3gnn.cli.options import File, Number, Source, Tables, Text, TopOption, argument, option, takes_graph
from h3gnn.cli.output import echo_json, say, say_repairs
from h3gnn.errors import InputError, check_choice, check_number, counted, shortened, without_secrets
from h3gnn.resources import AddBar, new_table, progress, show
from h3gnn.settings import check_arguments, parse_value
from h3gnn.storage.schema import check_values
from h3gnn.tuned import PRESET

if TYPE_CHECKING:
    from collections.abc import Callable

    import optuna

    from h3gnn.evaluation.results import Result
    from h3gnn.experiments.compare import Comparison, Skipped
    from h3gnn.experiments.methods import Method
    from h3gnn.experiments.spaces import SearchBudget, Space
    from h3gnn.experiments.tabular import TypedProblem
    from h3gnn.experiments.tune import Tuned
    from h3gnn.graphs.graph import Graph


DEFAULT = (
    "raw,smoothed,diffused,boosting,boosting-neighbours,label-propagation,correct-smooth,untrained,"
    "mlp,gcn,gprgnn,h2gcn,dgi,ccassg,maskgae,greet,h3gnn"
)
TABLES_DEFAULT = "raw,boosting,label-propagation,path-means,joined-boosting,rgcn,hgt,h3gnn,h3gnn-predict"
"""The default methods on a graph, and on several linked tables."""
QUICK_SPLITS = 3
_opt = partial(option, panel="Comparison")


@partial(takes_graph, without=("type", "preset", "epochs", "set_", "seed"))
def compare(
    *,
    source: Source,
    target: Annotated[
        Text,
        argument(
            "If GRAPH is several tables (a folder, a workbook, a database, a schema file, a folder of models "
            "of such): what to predict, `loan.status` or a condition, `loan.status=B,D`.",
            "TARGET",
        ),
    ] = None,
    tables: Tables,
    methods: Annotated[Text, _opt("Names, a group or all; see `h3gnn methods`.")] = None,
    seeds: Annotated[Number, _opt("Trainings; default: 1 with several splits, 5 with one.", min=1)] = None,
    grid: Annotated[str, _opt("Grid of supervised methods: small (4 settings) or full (36).")] = "small",
    out: Annotated[File, _opt("Store results in this .json; the same command continues.")] = None,
    quick: Annotated[bool, _opt("A trial run: few epochs, splits and settings.", "--quick")] = False,
    published: Annotated[bool, _opt("Use the authors' settings where known.", "--published")] = False,
    trials: Annotated[int, _opt("Settings to try per method; each split chooses its own.", min=0)] = 0,
    jobs: Annotated[int, _opt("Methods that run at once, in separate processes.", min=1)] = 1,
    top: TopOption = None,
    preset: options.PresetOption = None,
    epochs: options.EpochsOption = None,
    models: options.ModelsOption = None,
    set_: options.SetOption = None,
    device: options.DeviceOption = "auto",
    as_json: options.JsonOption = False,
) -> None:
    """Compare H3GNN with other methods on a labelled graph or several linked tables, with paired tests.

    `h3gnn compare texas --methods smoothed,gcn,h3gnn --out results.json`

    Of several linked tables: `h3gnn compare data/ loan.status --label-time row`
    """
    from h3gnn.experiments import compare as comparing
    from h3gnn.experiments.methods import find_methods, variant
    from h3gnn.experiments.run import method_params
    from h3gnn.graphs.graph import Graph, first_splits

    options.check_output(out, ".json")
    if quick and published:
        raise InputError("give either --quick or --published", code="quick-and-published")
    if trials and (quick or published):
        message = "--trials searches settings: omit --quick and --published"
        raise InputError(message, code="trials-and-settings")
    source, target = _source_and_target(source, target, tables.tables)
    linked, named = _names_tables(source), {"epochs": epochs, "n_models": models}
    chosen = find_methods(methods or (TABLES_DEFAULT if linked else DEFAULT), tables=linked)
    preset = preset or ("quick" if quick else None)
    model = options.build_estimator(preset, named, set_, seed=0, device=device)
    fixed = tuple(options.given_settings(named, set_))
    for method in chosen:
        method_params(method, model, grid)  # rejects an unknown grid before the work
    problem = (_read_tables if linked else _read_graph)(source, target, tables)
    if quick:
        some = QUICK_SPLITS
        problem = first_splits(problem, some) if isinstance(problem, Graph) else problem.first_splits(some)
    loaded = problem if isinstance(problem, Graph) else problem.view
    say_repairs(loaded)
    trainings = seeds or (1 if loaded.num_splits > 1 or quick else 5)
    say(
        f"{counted(len(chosen), 'method')} on {counted(loaded.num_nodes, 'row' if linked else 'node')}, "
        f"{counted(loaded.num_splits, 'split')}, {counted(trainings, 'seed')}"
    )
    if trials:
        _say_varied(chosen, fixed)
    if published:
        known = [one.title for one in chosen if variant(one, "published", source.benchmark) != one]
        say(f"authors' settings for {', '.join(known) or 'none of them'}; the others have their defaults")
    if quick:
        say("trial run: few epochs and one setting each, so the scores say little about the methods")
    with progress() as add_bar:
        watcher = _Watcher(add_bar, len(chosen), out)
        try:
            result = comparing.compare(
                chosen,
                problem,
                seeds=range(trainings),
                model=model,
                out=out,
                jobs=jobs,
                watch=watcher.watch,
                reused=watcher.reuse,
                ended=watcher.end,
                grid=grid,
                name=source.benchmark,
                top=top,
                settings="quick" if quick else "published" if published else "default",
                trials=trials,
                fixed=fixed,
            )
        except KeyboardInterrupt:
            watcher.stop()
            raise
    if as_json:
        echo_json(result.as_dict())
    else:
        _print_table(result)
    if result.failed:
        raise typer.Exit(1)


def _read_graph(source: Source, target: str | None, tables: Tables) -> Graph | TypedProblem:
    """Load a graph; reject what is asked about several tables."""
    tables.check_unused()
    if target is not None:
        message = f"{target!r}: only several tables take a target, and {source.graph} is none; use --labels"
        raise InputError(message, code="option-needs-tables")
    return source.load()


def _source_and_target(source: Source, target: str | None, tables: str | None) -> tuple[Source, str | None]:
    """Return the graph and the target; after --tables the target is the first word."""
    if tables is None:
        return source, target
    if target is not None:
        message = f"give either {source.graph} or --tables {tables}, not both"
        raise InputError(message, code="two-graphs")
    return replace(source, graph=tables), source.graph


def _say_varied(chosen: list[Method], fixed: tuple[str, ...]) -> None:
    """Report the settings that --trials does not vary."""
    from h3gnn.experiments.search import ranges_of

    options.say_fixed(fixed, [name for one in chosen if one.takes_settings for name in one.ranges])
    if own := [one.title for one in chosen if one.supervised and not ranges_of(one)]:
        say(f"--trials varies no settings of {', '.join(own)}")


def _names_tables(source: Source) -> bool:
    """Whether the graph is several linked tables, or a folder of models of such."""
    from h3gnn.storage.models import is_database

    return source.names_tables or (source.graph is not None and is_database(Path(source.graph)))


def _read_tables(source: Source, target: str | None, tables: Tables) -> Graph | TypedProblem:
    """Read several linked tables, or those of a folder of models."""
    from h3gnn.database import Database
    from h3gnn.experiments.tabular import TypedProblem

    replace(source, graph=None).check_tables(label=True)
    kinds = options.parse_columns(source.columns or [])
    place: dict[str, Any] = {"source" if source.names_tables else "folder": source.graph}
    database = Database(**place, as_of=tables.as_of, columns=kinds, accept=tables.accept)
    if target is None:
        message = f"name what to predict, TABLE.COLUMN; the tables are {shortened(database.types, 12)}"
        raise InputError(message, code="target-missing")
    task = source.task or "auto"
    return TypedProblem.read(database, target, label_time=tables.label_time, task=task)


class _Watcher:
    """Shows the progress of a comparison: bars on a terminal, else a line for each method."""

    def __init__(self, add_bar: AddBar, methods: int, out: Path | None) -> None:
        self.add_bar, self.methods, self.out = add_bar, methods, out
        self.bars: dict[str, Callable[..., None]] = {}
        self.shares: dict[str, float] = {}
        self.done = 0
        self.whole = add_bar("all methods", float(methods)) if methods > 1 else None

    def watch(self, method: Method, share: float) -> None:
        """Show the share of a method's work that is done."""
        if method.name not in self.bars:
            self.bars[method.name] = self.add_bar(method.title, 1.0)
        self.bars[method.name](completed=share)
        self._total(method, share)

    def reuse(self, method: Method, same: bool) -> None:
        """Report a stored result, or one with other settings."""
        if same:
            say(f"{method.title}: taken from {self.out}")
            self._total(method, 1.0)
        else:
            say(f"{method.title}: {self.out} has it with other settings; running it again")

    def end(self, method: Method, result: Result | Skipped) -> None:
        """Report a finished method."""
        from h3gnn.experiments.compare import Skipped

        self.done += 1
        self._total(method, 1.0)
        if isinstance(result, Skipped):
            say(f"{method.title}: {result.word}")
        elif not sys.stderr.isatty():
            mean, seconds = 100 * result.score(result.leading).mean, result.seconds
            say(f"{method.title}: {mean:.1f} % in {seconds:.0f} s ({self.done} of {self.methods})")

    def stop(self) -> None:
        """Report what is stored after an interruption."""
        if self.out is None:
            say("finished methods are not stored; --out stores them")
        elif self.done:
            say(f"{self.out} has {counted(self.done, 'method')} so far; the same command continues")

    def _total(self, method: Method, share: float) -> None:
        self.shares[method.name] = share
        if self.whole is not None:
            self.whole(completed=sum(self.shares.values()))


def _print_table(result: Comparison) -> None:
    """Print a row per method, then what the numbers mean and the verdict."""
    from rich.box import SIMPLE_HEAD

    from h3gnn.evaluation.results import ALL_TITLES, formatted
    from h3gnn.experiments.methods import METHODS
    from h3gnn.report.tables import measures_note, other_measures, percent

    shown = [result.results[name] for name in result.ranked]
    ours = result.reference.startswith("h3gnn")
    reference = result.results[result.reference].method if ours else "the best"
    rare = result.leading != "accuracy"
    table = new_table(shown[0].graph, title_justify="left", box=SIMPLE_HEAD)
    others = other_measures(result.leading) if rare else []
    between = [ALL_TITLES[name] for name in others] if rare else ["95 %\ninterval", "macro F1", "sec."]
    for heading in ("method", ALL_TITLES[result.leading], *between, f"against {reference} (p)"):
        shown_as = heading if "\n" in heading else heading.replace(" ", "\n", 1)
        table.add_column(shown_as, justify="left" if heading == "method" else "right")
    for name, one in zip(result.ranked, shown, strict=True):
        interval = result.score(name).interval95
        usual = (
            "–" if interval is None else f"{100 * max(0, interval[0]):.1f}–{100 * min(1, interval[1]):.1f}",
            f"{100 * one.macro_f1.mean:.1f}",
            f"{one.seconds:.1f}",
        )
        table.add_row(
            f"{'★' if name == result.ranked[0] else ' '} {one.method}",
            percent(result.score(name)),
            *([formatted(other, one.score(other)).split(" ±")[0] for other in others] if rare else usual),
            _versus(result, name),
        )
    for name, left in result.left_out.items():
        word = left.word if left.exit_code is None else f"{left.word} ({left.exit_code})"
        table.add_row(f"  {METHODS[name].title}", word, *[""] * (len(table.columns) - 2))
    show(table)
    if rare:
        typer.echo(measures_note(shown[0]))
    typer.echo(_legend(shown))
    for left in result.left_out.values():
        typer.echo(left.why)
    typer.echo(result.verdict)


def _legend(shown: list[Result]) -> str:
    seeds, splits = max(len(one.probe.values) for one in shown), len(shown[0].probe.values[0])
    words = (
        f"★ best here; mean ± standard deviation over {splits} split(s) × {seeds} seed(s), in %; "
        "everything chosen on validation nodes; ≈ within chance by a paired test (p ≥ 0.05)"
    )
    if seeds == 1 and splits > 1:
        words += "; one seed: splits vary here, the luck of a training does not (--seeds)"
    tried = [len(one.params["tried"]) for one in shown if one.protocol == "nested"]
    if tried:
        words += f"; up to {max(tried)} settings of each method tried, chosen by each split's own nodes"
    return words


def _versus(result: Comparison, name: str) -> str:
    if name == result.reference:
        return "–"
    test = result.test(name)
    if test.n < 2:
        return f"{100 * test.difference:+.1f}, one run"
    return f"{'' if test.differ else '≈ '}{100 * test.difference:+.1f} ({test.p_value:.2g})"


STORAGE = "sqlite:///h3gnn-studies.db"
EPOCHS = "10,20,40,80,160"
_search = partial(option, panel="Search")


@takes_graph
def tune(
    *,
    source: Source,
    out: Annotated[Path, option("File for the preset.", metavar="FILE.json")] = Path("preset.json"),
    record: Annotated[File, _search("Also write all trials.", metavar="FILE.json")] = None,
    trials: Annotated[int, _search("Number of configurations to try.", min=1)] = 100,
    minutes: Annotated[float | None, _search("Start no trial after this time.")] = None,
    protocol: Annotated[str, _search("pooled (one search), or nested (one choice per split).")] = "pooled",
    objective: Annotated[str, _search("validation, clustering or label-free score.")] = "validation",
    space: Annotated[
        str, _search("committee (ensemble); of one model: paper, structure, full.")
    ] = "committee",
    choices: Annotated[
        list[str] | None,
        _search("Values of a setting, e.g. `--choices hops=2,4`; may be repeated.", metavar="NAME=A,B,…"),
    ] = None,
    epochs: Annotated[Text, _search(f"Epochs at which trials are scored; pooled: {EPOCHS}.")] = None,
    joined: Annotated[Number, _search("Models of a trial; default: 4 in an ensemble, else 1.", min=1)] = None,
    at_once: Annotated[Number, _search("No longer used.", hidden=True)] = None,
    finalists: Annotated[int, _search("Best trials to train again with --models.", min=1)] = 4,
    repeats: Annotated[int, _search("Trainings of each finalist, with different seeds.", min=1)] = 1,
    probed: Annotated[
        bool, _search("Score finalists by the linear probe, not by ridge.", "--probed")
    ] = False,
    models: Annotated[int, _search("`n_models` of the preset.", min=1)] = 8,
    splits: Annotated[Number, _search("Score trials on the first splits only.", min=1)] = None,
    clusters: Annotated[Number, _search("Number of clusters of k-means.", min=2)] = None,
    study: Annotated[Text, _search("Name of the study; the same name continues it.")] = None,
    storage: Annotated[str, _search("Optuna storage URL, or a journal, FILE.log.")] = STORAGE,
    seed: options.SeedOption = 0,
    device: options.DeviceOption = "auto",
    as_json: options.JsonOption = False,
) -> None:
    """Search for good settings on a graph by its training and validation nodes.

    `h3gnn tune texas --trials 200 --out texas.json`, then `h3gnn fit texas --preset texas.json --out run/`
    """
    from h3gnn.experiments.spaces import SearchBudget
    from h3gnn.experiments.studies import open_study
    from h3gnn.experiments.tune import Budget
    from h3gnn.experiments.tune import tune as run
    from h3gnn.training.resources import pick_device

    if at_once is not None:
        say("--at-once is not used any more: run the same command several times to train trials in parallel")
    check_choice("--protocol", protocol, ("pooled", "nested"))
    for path in (out, record):
        options.check_output(path, ".json")
    chosen = _build_space(space, choices)
    of_trial = joined or (4 if "objective" in chosen.choices else 1)
    seconds = None if minutes is None else 60 * check_number("--minutes", minutes, 0, 1e6)
    budget = Budget(trials, of_trial, _parse_epochs(EPOCHS if epochs is None else epochs), seconds)
    loaded = source.load()
    name = study or f"{loaded.provenance.source.split(' ')[0]}-{loaded.provenance.sha256[:8]}-{objective}"
    if protocol == "nested":
        if objective != "validation":
            raise InputError("--protocol nested needs --objective validation", code="nested-objective")
        drawn = SearchBudget(trials, seconds, () if epochs is None else budget.eval_epochs, seed)
        nested = _tune_nested(loaded, chosen, drawn, splits, models, name, device)
        _write(*nested, out, record, as_json)
        return
    opened = open_study(loaded, name, storage, objective)
    say(f"{trials} trials of up to {budget.eval_epochs[-1]} epochs on {loaded.num_nodes:,} nodes")
    with progress(counted=True) as add_bar:
        bar = add_bar("trials", trials)
        found = run(
            loaded,
            opened,
            chosen,
            budget,
            models=models,
            finalists=finalists,
            repeats=repeats,
            probed=probed,
            objective=objective,
            splits=splits,
            clusters=clusters,
            device=pick_device(device),
            seed=seed,
            progress=_watching(bar),
            scored=lambda epoch: bar(description=f"trials (epoch {epoch} of {budget.eval_epochs[-1]})"),
        )
    summary = (
        f"{loaded.provenance.source}: {found.made['trials']} trials, best {objective} score "
        f"{found.made['score']:.4f} after {found.params['epochs']} epochs with {models} model(s)"
    )
    _write(found, summary, out, record, as_json)


def _tune_nested(
    graph: Graph, space: Space, budget: SearchBudget, splits: int | None, models: int, name: str, device: str
) -> tuple[Tuned, str]:
    """Try settings that are drawn beforehand, and let each split choose; return the result in words, too."""
    from h3gnn.experiments.tune import tune_from_list

    choosing = min(splits or graph.num_splits, graph.num_splits)
    say(f"up to {budget.trials} settings on {graph.num_nodes:,} nodes; {choosing} split(s) choose")
    options.say_fixed([name for name, values in space.choices.items() if len(values) == 1], space.choices)
    with progress() as add_bar:
        bar = add_bar("settings", 1.0)
        found = tune_from_list(
            graph,
            space,
            budget,
            models=models,
            study=name,
            device=device,
            seed=budget.seed,
            splits=splits,
            watch=lambda share: bar(completed=share),
        )
    nested = found.made["nested"]
    summary = (
        f"{graph.provenance.source}: {found.made['trials']} settings; nested test accuracy "
        f"{100 * nested['test_mean']:.1f} ± {100 * nested['test_std']:.1f} % "
        "(each split chooses its settings); the preset has those that all splits together choose"
    )
    return found, summary


def _write(found: Tuned, summary: str, out: Path, record: Path | None, as_json: bool) -> None:
    """Write the preset, and all trials if requested, and print the result."""
    from h3gnn.storage.atomic import write_atomically

    preset = found.preset(None if record is None else record.name)
    write_atomically(out, _text(out, preset))
    if record is not None:
        command = ["h3gnn", *map(without_secrets, sys.argv[1:])]
        write_atomically(record, _text(record, {**preset, "command": command, **found.record}))
    if as_json:
        echo_json(preset)
    else:
        typer.echo(f"{summary}\nwrote {out}; use it with `h3gnn fit … --preset {out}`")


def _parse_epochs(text: str) -> tuple[int, ...]:
    """Return `10,20,40` as numbers."""
    epochs = options.parse_numbers("--epochs", text, "10,20,40")
    if epochs[0] < 1 or sorted(set(epochs)) != epochs:
        raise InputError(f"--epochs {text}: give increasing integers, e.g. 10,20,40", code="value-invalid")
    return tuple(epochs)


def _build_space(name: str, choices: list[str] | None) -> Space:
    """Return the named space with `--choices` on top; every value is checked as `H3GNN` would."""
    from h3gnn.experiments.spaces import SPACES, with_objectives
    from h3gnn.experiments.tune import start_of

    check_choice("--space", name, SPACES)
    defaults = start_of(SPACES[name])
    given: dict[str, list[Any]] = {}
    for text in choices or []:
        argument, listed = options.split_assignment("--choices", text, "NAME=A,B,…")
        given[argument] = [parse_value(argument, one) for one in listed.split(",")]
        for value in given[argument]:
            check_arguments(with_objectives({**defaults, argument: value}))
    return SPACES[name].restricted(given)


def _text(path: Path, content: dict[str, Any]) -> bytes:
    text = json.dumps(content, indent=1) + "\n"
    check_values(PRESET, json.loads(text), path, words="cannot be written")
    return text.encode()


def _watching(bar: Callable[..., None]) -> Callable[[optuna.Study], None]:
    """Return a callback that shows the number of trials and the best score."""
    from h3gnn.experiments.studies import finished
    from h3gnn.experiments.tune import best_trials

    def show(study: optuna.Study) -> None:
        best = best_trials(study, 1)
        bar(completed=finished(study), note=f"best {best[0].score:.4f}" if best else "")

    return show
