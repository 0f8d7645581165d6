"""`h3gnn tune`: search for good settings on a graph by its training and validation nodes."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from h3gnn.cli import options
from h3gnn.cli.options import File, Number, Source, Text, option, takes_graph
from h3gnn.cli.output import echo_json, say
from h3gnn.errors import InputError, check_choice, check_number, without_secrets
from h3gnn.resources import progress
from h3gnn.settings import check_arguments, parse_value
from h3gnn.storage.schema import check_values
from h3gnn.tuned import PRESET

if TYPE_CHECKING:
    from collections.abc import Callable

    import optuna

    from h3gnn.experiments.spaces import SearchBudget, Space
    from h3gnn.experiments.tune import Tuned
    from h3gnn.graphs.graph import Graph

STORAGE = "sqlite:///h3gnn-studies.db"
EPOCHS = "10,20,40,80,160"
_opt = partial(option, panel="Search")


@takes_graph
def tune(
    *,
    source: Source,
    out: Annotated[Path, option("File for the preset.", metavar="FILE.json")] = Path("preset.json"),
    record: Annotated[File, _opt("Also write all trials.", metavar="FILE.json")] = None,
    trials: Annotated[int, _opt("Number of configurations to try.", min=1)] = 100,
    minutes: Annotated[float | None, _opt("Start no trial after this time.")] = None,
    protocol: Annotated[str, _opt("pooled (one search), or nested (one choice per split).")] = "pooled",
    objective: Annotated[str, _opt("validation, clustering or label-free score.")] = "validation",
    space: Annotated[str, _opt("committee (ensemble); of one model: paper, structure, full.")] = "committee",
    choices: Annotated[
        list[str] | None,
        _opt("Values of a setting, e.g. `--choices hops=2,4`; may be repeated.", metavar="NAME=A,B,…"),
    ] = None,
    epochs: Annotated[Text, _opt(f"Epochs at which trials are scored; pooled: {EPOCHS}.")] = None,
    joined: Annotated[Number, _opt("Models of a trial; default: 4 in an ensemble, else 1.", min=1)] = None,
    at_once: Annotated[Number, _opt("No longer used.", hidden=True)] = None,
    finalists: Annotated[int, _opt("Best trials to train again with --models.", min=1)] = 4,
    repeats: Annotated[int, _opt("Trainings of each finalist, with different seeds.", min=1)] = 1,
    probed: Annotated[bool, _opt("Score finalists by the linear probe, not by ridge.", "--probed")] = False,
    models: Annotated[int, _opt("`n_models` of the preset.", min=1)] = 8,
    splits: Annotated[Number, _opt("Score trials on the first splits only.", min=1)] = None,
    clusters: Annotated[Number, _opt("Number of clusters of k-means.", min=2)] = None,
    study: Annotated[Text, _opt("Name of the study; the same name continues it.")] = None,
    storage: Annotated[str, _opt("Optuna storage URL, or a journal, FILE.log.")] = STORAGE,
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
