"""`h3gnn compare`: which method wins on this graph, and whether the difference is real."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from h3gnn.cli import settings
from h3gnn.cli.evaluate import TopOption
from h3gnn.cli.output import progress, say
from h3gnn.cli.source import Source, takes_graph

if TYPE_CHECKING:  # torch takes seconds to import, and --help must not
    from h3gnn.experiments.compare import Comparison
    from h3gnn.experiments.methods import Method

DEFAULT = "raw,smoothed,diffused,untrained,mlp,gcn,gat,h2gcn,dgi,bgrl,decoder,graphmae,h3gnn"
PANEL = "The comparison"
MethodsOption = Annotated[
    str,
    typer.Option(help="Which, with commas between; there is smoothed2 as well.", rich_help_panel=PANEL),
]
SeedsOption = Annotated[
    int | None,
    typer.Option(
        help="Train so many times; else 1 with several splits, 5 with one.",
        min=1,
        rich_help_panel=PANEL,
        show_default=False,
    ),
]
GridOption = Annotated[
    str,
    typer.Option(
        help="Hyper-parameters of the supervised methods to choose from: small (4) or full (36).",
        rich_help_panel=PANEL,
    ),
]
OutOption = Annotated[
    Path | None,
    typer.Option(
        "--out",
        help="Keep results in this .json as they come; the same command goes on from there.",
        rich_help_panel=PANEL,
    ),
]


@takes_graph
def compare(
    *,
    source: Source,
    methods: MethodsOption = DEFAULT,
    seeds: SeedsOption = None,
    grid: GridOption = "small",
    out: OutOption = None,
    top: TopOption = None,
    preset: settings.PresetOption = None,
    epochs: settings.EpochsOption = None,
    models: settings.ModelsOption = None,
    set_: settings.SetOption = None,
    device: settings.DeviceOption = "auto",
    as_json: settings.JsonOption = False,
) -> None:
    """Run H3GNN beside other methods on a graph with labels: which wins here, and is the difference real?

    `h3gnn compare texas` runs all of them; `h3gnn compare texas --methods smoothed,gcn,h3gnn` some.

    `h3gnn compare --edges e.csv --features f.csv --labels y.csv --out results.json` takes your own graph and
    keeps each result as it comes.

    Every method meets the same splits, and all that is chosen is chosen on validation nodes. A paired test
    says whether a difference to H3GNN is more than chance. Where one class is rare, the methods are ranked by
    average precision (of several classes, by balanced accuracy). docs/compare.md explains the methods.
    """
    loaded = source.load()
    from h3gnn.experiments import compare as comparing
    from h3gnn.experiments.methods import find_methods
    from h3gnn.experiments.run import build_judge, method_params

    if out is not None:
        settings.check_output(out, (".json",))
    chosen = find_methods(methods)
    build_judge(loaded)  # says at once if there are no labels
    model = settings.build_estimator(
        preset, {"epochs": epochs, "n_models": models}, set_, seed=0, device=device
    )
    for method in chosen:
        method_params(method, model, grid)  # says at once if there is no such grid
    for note in loaded.provenance.mended:
        say(f"note: {note}")
    trainings = seeds or (1 if loaded.num_splits > 1 else 5)
    say(
        f"{len(chosen)} method(s) on {loaded.num_nodes:,} nodes, {loaded.num_splits} split(s), "
        f"{trainings} seed(s)"
    )
    with progress() as add_bar:

        def watch(method: Method) -> Callable[[float], None]:
            bar = add_bar(method.title, 1.0)
            return lambda share: bar(completed=share)

        result = comparing.compare(
            chosen,
            loaded,
            seeds=range(trainings),
            model=model,
            grid=grid,
            name=source.benchmark,
            out=out,
            top=top,
            watch=watch,
            reused=lambda method: say(f"{method.title}: taken from {out}"),
        )
    if as_json:
        typer.echo(json.dumps(result.as_dict(), indent=2, ensure_ascii=False))
        return
    _print_table(result)


def _print_table(result: Comparison) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from h3gnn.evaluation.measures import TITLES
    from h3gnn.report.tables import beside, percent, rare_words

    console, shown = Console(), [result.results[name] for name in result.ranked]
    reference, rare = "H3GNN" if result.reference == "h3gnn" else "the best", result.leading != "accuracy"
    table = Table(title=escape(shown[0].graph), title_justify="left", box=SIMPLE_HEAD)
    others = beside(result.leading) if rare else []
    between = [TITLES[name] for name in others] if rare else ["95 %\ninterval", "macro F1", "sec."]
    for heading in ("method", TITLES[result.leading], *between, f"against {reference} (p)"):
        shown_as = heading if "\n" in heading else heading.replace(" ", "\n", 1)
        table.add_column(shown_as, justify="left" if heading == "method" else "right")
    for name, one in zip(result.ranked, shown, strict=True):
        interval = result.score(name).interval95
        usual = (
            "–" if interval is None else f"{100 * interval[0]:.1f}–{100 * interval[1]:.1f}",
            f"{100 * one.macro_f1.mean:.1f}",
            f"{one.seconds:.1f}",
        )
        table.add_row(
            f"{'★' if name == result.ranked[0] else ' '} {escape(one.method)}",
            percent(result.score(name)),
            *([f"{100 * one.score(other).mean:.1f}" for other in others] if rare else usual),
            _versus(result, name),
        )
    console.print(table)
    seeds, splits = max(len(one.probe.values) for one in shown), len(shown[0].probe.values[0])
    words = (
        f"★ best here; mean ± standard deviation over {splits} split(s) × {seeds} seed(s), in %; "
        "everything chosen on validation nodes; ≈ within chance by a paired test (p ≥ 0.05)"
    )
    if rare:
        console.print(rare_words(shown[0]), markup=False, highlight=False, soft_wrap=True)
    console.print(words, markup=False, highlight=False, soft_wrap=True)
    console.print(result.verdict, markup=False, highlight=False, soft_wrap=True)


def _versus(result: Comparison, name: str) -> str:
    if name == result.reference:
        return "–"
    test = result.test(name)
    if test.n < 2:
        return f"{100 * test.difference:+.1f}, one run"
    return f"{'' if test.differ else '≈ '}{100 * test.difference:+.1f} ({test.p_value:.2g})"
