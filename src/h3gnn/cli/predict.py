"""`h3gnn predict`: classes of unlabelled nodes, from the labelled ones."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from h3gnn.cli import options
from h3gnn.cli.options import NewEdgesOption, NewFeaturesOption, Source, Text, argument, option, takes_graph
from h3gnn.cli.output import echo_json, echo_written, print_table, say, write_table
from h3gnn.cli.training import Training, checkpoint_policy
from h3gnn.errors import CheckpointError, InputError
from h3gnn.resources import progress

if TYPE_CHECKING:  # torch takes seconds to import, and --help must not
    from h3gnn.answers.prediction import Predictions
    from h3gnn.estimator import H3GNN
    from h3gnn.graphs.graph import Graph

_opt = partial(option, panel="Decision")
HEADINGS = {"told": "share of unmarked nodes", "accuracy_where_told": "accuracy of unmarked nodes"}
"""Headings of measures that are not named by their keys."""


@partial(takes_graph, without=("graph", "split_columns", "data_dir"))
def predict(
    *,
    run: Annotated[Path, argument("Folder of `h3gnn fit --out`; with --edges, a new folder.", "RUN")],
    out: Annotated[Path, option("The file: .parquet or .csv.")] = Path("predictions.parquet"),
    source: Source,
    class_weight: Annotated[str, _opt("none, or balanced: favours rare classes.")] = "none",
    threshold: Annotated[Text, _opt("Probability of the rarer of two classes; auto learns it.")] = None,
    cannot_tell_below: Annotated[float | None, _opt("Mark less probable classes; default: learned.")] = None,
    labelled_too: Annotated[
        bool, option("Also predict labelled nodes, without their label.", "--all")
    ] = False,
    allow_leaks: Annotated[bool, option("Accept features that contain the class.", "--allow-leaks")] = False,
    new_features: NewFeaturesOption = None,
    new_edges: NewEdgesOption = None,
    preset: options.PresetOption = None,
    epochs: options.EpochsOption = None,
    set_: options.SetOption = None,
    seed: options.SeedOption = 0,
    safe_csv: options.SafeCsvOption = False,
    unfinished: options.UnfinishedOption = False,
    device: options.DeviceOption = "auto",
    as_json: options.JsonOption = False,
) -> None:
    """Predict the class of every unlabelled node, with calibrated probabilities and held-out scores.

    `h3gnn predict run/ --labels fraud.csv --threshold auto --out predictions.csv`
    """
    from h3gnn.answers.prediction import Rule, predict_classes

    options.check_table(out)
    rule = Rule(class_weight, _threshold(threshold), cannot_tell_below)
    settings = {"preset": preset, "epochs": epochs, "set": set_}
    model = _open_or_fit(run, source, settings, seed, device, unfinished)
    labels, names, label_name = _labels(model.graph_, source, run)
    rule.check(max(2, len(names)))
    extension = None
    if new_features is not None or new_edges is not None:
        extension = options.extend_run(model, new_features, new_edges, source.reading())
    with progress() as add, model.embedding_rows() as embedding:
        bar = add("held-out folds", 1.0)
        found = predict_classes(
            model.graph_,
            embedding,
            labels,
            names,
            rule,
            extension=extension,
            labelled_too=labelled_too,
            label_name=label_name,
            allow_leaks=allow_leaks,
            seed=seed,
            progress=lambda share: bar(completed=share),
        )
    write_table(out, found.table, safe=safe_csv)
    _report(found, model.graph_, out, as_json)


def _open_or_fit(
    run: Path, source: Source, settings: dict[str, Any], seed: int, device: str, unfinished: bool
) -> H3GNN:
    """Return the model of a run; given tables, fit it first, or continue where the same command ended."""
    given = [name for name, value in (*settings.items(), ("undirected", source.undirected)) if value]
    if not source.edges:
        if source.features or given:
            name = "features" if source.features else given[0]
            raise InputError(f"--{name} needs a fit: add --edges, or omit it", code="option-needs-edges")
        return options.open_run(run, device, unfinished=unfinished, in_files=True)
    from h3gnn.answers.prediction import check_labels
    from h3gnn.storage.models import DESCRIPTION, check_folder
    from h3gnn.storage.runs import has_begun, read_run

    if unfinished:
        raise InputError("--unfinished uses a run as it is: omit --edges", code="unfinished-and-edges")
    check_folder(run)
    model = options.build_estimator(
        settings["preset"], {"epochs": settings["epochs"]}, settings["set"], seed=seed, device=device
    )
    graph = source.load()
    check_labels(*_labels(graph, source, run)[:2])  # before the work, not after it
    training = Training(model, graph, run, checkpoints=checkpoint_policy(run))
    if has_begun(run):
        say(f"continuing the unfinished run in {run}")
        with suppress(CheckpointError):  # where its start is damaged, the tables and options replace it
            old = read_run(run)
            training = Training(model, graph, run, old.embeddings, old.checkpoints, safe=old.safe_csv)
    elif (run / DESCRIPTION).exists():
        return _open_same(run, model, graph)
    training.start()
    say(f"wrote {run}")
    return model


def _open_same(run: Path, model: H3GNN, graph: Graph) -> H3GNN:
    """Return the model of a run, which must be the one that the tables and settings would give."""
    from h3gnn.storage.runs import difference

    fitted = options.open_run(run, str(model.device), in_files=True)
    different = difference((fitted.get_settings(), fitted.graph_), (model.get_settings(), graph))
    if different:
        raise InputError(
            f"{run} is already fitted ({different}): omit --edges to use it, or choose another folder",
            code="already-fitted",
        )
    say(f"note: {run} is already fitted on these tables; only the predictions are computed")
    return fitted


def _threshold(text: str | None) -> float | str | None:
    if text is None or text == "auto":
        return text
    try:
        return float(text)
    except ValueError:
        raise InputError(
            f"--threshold {text}: give a probability between 0 and 1, or auto", code="value-invalid"
        ) from None


def _labels(graph: Any, source: Source, run: Path) -> tuple[Any, tuple[str, ...], str | None]:
    """Return the labels of a file and the name of their column, else the labels of the graph."""
    if source.labels is not None and not source.edges:
        from h3gnn.tables.read import labels_of_nodes

        style = {"header": source.header, "delimiter": source.delimiter}
        columns, drop = (source.label_id_column, source.label_column), source.unknown_nodes == "drop"
        known, repairs = labels_of_nodes(
            source.labels, graph.node_ids, run, *columns, style, task=source.task or "auto", drop=drop
        )
        for repair in repairs:
            say(f"note: {repair.message}")
        return known["labels"], known["class_names"], known["label_name"]
    if graph.labels is None:
        where = "the tables have" if source.edges else f"{run} has"
        column = ", or name a column of the features (--label-column)" if source.edges else ""
        raise InputError(
            f"{where} no labels: give a file with one node and its class per row (--labels){column}",
            code="no-labels",
        )
    return graph.labels.numpy(), graph.class_names, None


def _report(found: Predictions, graph: Any, out: Path, as_json: bool) -> None:
    from h3gnn.storage.runs import made_with

    summary = found.as_dict()
    if as_json:
        echo_json(summary | {"out": str(out), "graph": graph.provenance.as_dict(), **made_with()})
        return
    for note in found.notes:
        say(f"note: {note}")
    held, positive, rows = summary["held_out"], summary["held_out"]["positive_class"], []
    for name, mean in held["mean"].items():
        of = f" of {positive}" if name in ("average_precision", "precision", "recall") else ""
        spread = f" ± {held['std'][name]:.3f}" if name in held["std"] else ""
        rows.append([HEADINGS.get(name, name.replace("_", " ")) + of, f"{mean:.3f}{spread}"])
    rows.append(["largest class's share", f"{held['majority_share']:.3f}"])
    title = f"Held-out scores of {found.labelled:,} labelled nodes, {held['folds']} folds"
    print_table(title, ("measure", "mean ± std"), rows, right=("mean ± std",))
    counts = ", ".join(f"{name}: {count:,}" for name, count in list(summary["classes"].items())[:8])
    typer.echo(
        f"{summary['nodes']:,} nodes ({counts}), {summary['cannot_tell']:,} of them marked as cannot tell"
    )
    typer.echo(found.how)
    echo_written(out)
