"""`h3gnn tune`: search for good settings on a graph, without looking at its test nodes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from h3gnn.cli import settings
from h3gnn.cli.source import Source, takes_graph
from h3gnn.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    import optuna

    from h3gnn.experiments.spaces import Space
    from h3gnn.graphs.graph import Graph

PANEL = "The search"
STORAGE = "sqlite:///h3gnn-studies.db"


@takes_graph
def tune(
    *,
    source: Source,
    out: Annotated[Path, typer.Option("--out", help="Where the preset goes.", metavar="FILE.json")] = Path(
        "preset.json"
    ),
    record: Annotated[
        Path | None,
        typer.Option(help="Also write every trial and finalist.", metavar="FILE.json", rich_help_panel=PANEL),
    ] = None,
    trials: Annotated[int, typer.Option(help="Configurations to try in all.", rich_help_panel=PANEL)] = 100,
    minutes: Annotated[
        float | None, typer.Option(help="Ask for no more after so long.", rich_help_panel=PANEL)
    ] = None,
    objective: Annotated[
        str,
        typer.Option(
            help="validation, clustering (k-means, scored on validation nodes), or label-free (no label is "
            "looked at).",
            rich_help_panel=PANEL,
        ),
    ] = "validation",
    space: Annotated[
        str,
        typer.Option(help="full, paper (its appendix) or structure (of the encoder).", rich_help_panel=PANEL),
    ] = "full",
    choices: Annotated[
        list[str] | None,
        typer.Option(
            "--choices",
            metavar="NAME=A,B,…",
            help="Other values for an argument of `H3GNN`, e.g. `--choices hops=2,4`; may be repeated.",
            rich_help_panel=PANEL,
        ),
    ] = None,
    epochs: Annotated[
        str,
        typer.Option(help="Where trials are scored; the last is their end.", rich_help_panel=PANEL),
    ] = "10,20,40,80,160",
    joined: Annotated[
        int, typer.Option(help="Models of a trial, scored side by side.", rich_help_panel=PANEL)
    ] = 1,
    at_once: Annotated[int, typer.Option(help="Models trained as one program.", rich_help_panel=PANEL)] = 16,
    finalists: Annotated[
        int, typer.Option(help="So many of the best are trained again with --models.", rich_help_panel=PANEL)
    ] = 4,
    repeats: Annotated[
        int,
        typer.Option(
            min=1, help="How often each of them is trained, from other seeds.", rich_help_panel=PANEL
        ),
    ] = 1,
    probed: Annotated[
        bool,
        typer.Option(
            "--probed",
            help="Score the finalists by the linear probe itself, not by ridge regression; slower.",
            rich_help_panel=PANEL,
        ),
    ] = False,
    models: Annotated[
        int, typer.Option("--models", help="`n_models` of the preset.", rich_help_panel=PANEL)
    ] = 4,
    splits: Annotated[
        int | None,
        typer.Option(help="Score trials on the first few splits only.", rich_help_panel=PANEL),
    ] = None,
    clusters: Annotated[
        int | None, typer.Option(help="For k-means: how many clusters.", rich_help_panel=PANEL)
    ] = None,
    study: Annotated[
        str | None,
        typer.Option(help="Name of the study; the same name goes on with it.", rich_help_panel=PANEL),
    ] = None,
    storage: Annotated[
        str,
        typer.Option(
            help="Any Optuna storage address, so that many machines may share it; or a journal, FILE.log.",
            rich_help_panel=PANEL,
        ),
    ] = STORAGE,
    seed: settings.SeedOption = 0,
    device: settings.DeviceOption = "auto",
    as_json: settings.JsonOption = False,
) -> None:
    """Search for good settings on a graph, without looking at its test nodes.

    `h3gnn tune texas --trials 200 --models 8 --out texas.json`, then
    `h3gnn fit texas --preset texas.json --out run/`.

    Trials are scored on validation nodes (or without labels) while they train, many at once; those that fall
    behind stop early. The best few are then trained with `--models` models each, and the best of those is the
    preset. An interrupted search goes on when the same command is given again.
    """
    from h3gnn.experiments.tune import open_study
    from h3gnn.experiments.tune import tune as run
    from h3gnn.experiments.tuning import Budget
    from h3gnn.storage import write_atomically
    from h3gnn.training.resources import pick_device

    for path in (out, record):
        if path is not None:
            settings.check_output(path, (".json",))
    budget = Budget(trials, at_once, joined, parse_epochs(epochs), None if minutes is None else 60 * minutes)
    chosen = build_space(space, choices)
    loaded = source.load()
    name = study or _study_name(loaded, objective)
    opened = open_study(loaded, name, storage, objective, seed)
    with _progress(trials) as told:
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
            told=told,
        )
    write_atomically(out, _text(found.preset()))
    if record is not None:
        write_atomically(record, _text({**found.preset(), **found.record}))
    if as_json:
        typer.echo(json.dumps(found.preset(), indent=2))
        return
    typer.echo(
        f"{loaded.provenance.source}: {found.made['trials']} trials, best {objective} score "
        f"{found.made['score']:.4f} after {found.params['epochs']} epochs with {models} model(s)"
    )
    typer.echo(f"wrote {out}; use it with `h3gnn fit … --preset {out}`")


def parse_epochs(text: str) -> tuple[int, ...]:
    """Return `10,20,40` as numbers."""
    try:
        rungs = tuple(int(one) for one in text.split(","))
    except ValueError:
        rungs = ()
    if not rungs or rungs[0] < 1 or sorted(set(rungs)) != list(rungs):
        raise InputError(f"--epochs {text}: write growing whole numbers with commas between, e.g. 10,20,40")
    return rungs


def build_space(name: str, choices: list[str] | None) -> Space:
    """Return the named space with `--choices` on top; every value is checked as `H3GNN` would."""
    from h3gnn.arguments import check_arguments
    from h3gnn.estimator import H3GNN
    from h3gnn.experiments.spaces import SPACES

    if name not in SPACES:
        raise InputError(f"there is no space {name!r}; the spaces are {', '.join(SPACES)}")
    defaults = H3GNN().get_params()
    given: dict[str, list[Any]] = {}
    for text in choices or []:
        argument, equals, listed = text.partition("=")
        if not equals:
            raise InputError(f"--choices {text}: write NAME=A,B,…")
        if argument not in defaults:
            raise InputError(f"--choices {argument}: H3GNN has no such argument; see docs/method.md")
        given[argument] = [settings.parse_value(argument, one) for one in listed.split(",")]
        for value in given[argument]:
            check_arguments({**defaults, argument: value})
    return SPACES[name].restricted(given)


def _study_name(graph: Graph, objective: str) -> str:
    return f"{graph.provenance.source.split(' ')[0]}-{graph.provenance.sha256[:8]}-{objective}"


def _text(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=1) + "\n").encode()


@contextmanager
def _progress(trials: int) -> Iterator[Callable[[optuna.Study], None] | None]:
    """Show trials done and the best score on standard error, where that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from h3gnn.experiments.tuning import finished

    columns = (
        TextColumn("trials"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("best {task.fields[best]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("trials", total=trials, best="–")

        def told(study: optuna.Study) -> None:
            scores = [
                t.user_attrs["best"] for t in study.get_trials(deepcopy=False) if "best" in t.user_attrs
            ]
            best = f"{max(scores):.4f}" if scores else "–"
            progress.update(task, completed=finished(study), best=best)

        yield told
