"""`h3gnn predict`: classes of unlabelled nodes, from the labelled ones."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from h3gnn.cli import options
from h3gnn.cli.options import (
    TABLE_ENDINGS,
    NewEdgesOption,
    NewFeaturesOption,
    Source,
    extend_run,
    open_run,
    takes_graph,
)
from h3gnn.cli.output import progress, say, write_table
from h3gnn.cli.training import learn_and_save, policy
from h3gnn.errors import InputError

if TYPE_CHECKING:  # torch takes seconds to import, and --help must not
    from h3gnn.answers.prediction import Predictions
    from h3gnn.estimator import H3GNN

PANEL = "The decision"
NOT_ASKED = ("graph", "split_columns", "data_dir")


@partial(takes_graph, without=NOT_ASKED)
def predict(
    *,
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="Folder that `h3gnn fit --out` wrote; with --edges, one that is fitted now."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="File for the predictions: .parquet or .csv.")] = Path(
        "predictions.parquet"
    ),
    source: Source,
    class_weight: Annotated[
        str,
        typer.Option(
            help="none, or balanced: decide as is best where classes are rare.", rich_help_panel=PANEL
        ),
    ] = "none",
    threshold: Annotated[
        str | None,
        typer.Option(
            help="Of two classes: probability from which on the rarer is decided, or auto to learn it.",
            rich_help_panel=PANEL,
            show_default=False,
        ),
    ] = None,
    cannot_tell_below: Annotated[
        float | None,
        typer.Option(
            help="Mark classes with less probability; else learned on held-out nodes.",
            rich_help_panel=PANEL,
            show_default=False,
        ),
    ] = None,
    labelled_too: Annotated[
        bool, typer.Option("--all", help="Labelled nodes, too: each as if its label were not known.")
    ] = False,
    new_features: NewFeaturesOption = None,
    new_edges: NewEdgesOption = None,
    preset: options.PresetOption = None,
    epochs: options.EpochsOption = None,
    set_: options.SetOption = None,
    seed: options.SeedOption = 0,
    safe_csv: options.SafeCsvOption = False,
    device: options.DeviceOption = "auto",
    as_json: options.JsonOption = False,
) -> None:
    """Say the class of every unlabelled node, from the labelled ones, and how far that can be believed.

    `h3gnn predict run/ --out predictions.parquet`

    `h3gnn predict run/ --edges transactions.csv --features accounts.csv --label-column is_fraud` first fits
    the tables into run/, as `h3gnn fit` does.

    `h3gnn predict run/ --labels fraud.csv --threshold auto --out predictions.csv`

    `h3gnn predict run/ --new-features today.csv --new-edges today-edges.csv --out today.csv`

    Each row has a node, its class, the class's probability, whether that is too little to tell, and the
    probability of every class. Probabilities are calibrated, and marks learned, on labelled nodes that the
    classifier had not seen; the scores are of labelled nodes that no part of this had seen. Labels are
    those of the run, or a file's: `--labels nodes.csv` with a node and its class in each row.
    """
    options.check_output(out, TABLE_ENDINGS)
    from h3gnn.answers.prediction import Rule, predict_classes

    rule = Rule(class_weight, _threshold(threshold), cannot_tell_below)
    model = _opened(run, source, {"preset": preset, "epochs": epochs, "set": set_}, seed, device)
    labels, names = _labels(model.graph_, source, run)
    rule.check(max(2, len(names)))
    extension = None
    if new_features is not None or new_edges is not None:
        extension = extend_run(model, new_features, new_edges, source.reading())
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
            seed=seed,
            progress=lambda share: bar(completed=share),
        )
    write_table(out, found.table, safe=safe_csv)
    _tell(found, model.graph_, out, as_json)


def _opened(run: Path, source: Source, said: dict[str, Any], seed: int, device: str) -> H3GNN:
    """Return the model of a run; where tables are given, it is fitted to them first."""
    given = [name for name, value in (*said.items(), ("undirected", source.undirected)) if value]
    if not source.edges:
        if source.features or given:
            option = "features" if source.features else given[0]
            raise InputError(f"--{option} is about a fit: give --edges as well, or leave it out")
        return open_run(run, device, in_files=True)
    from h3gnn.answers.prediction import check_labels
    from h3gnn.storage.models import DESCRIPTION, check_folder

    if (run / DESCRIPTION).exists():
        raise InputError(
            f"{run} is fitted already: `h3gnn predict {run}` without --edges asks it; "
            "another folder fits these tables"
        )
    check_folder(run)
    model = options.build_estimator(
        said["preset"], {"epochs": said["epochs"]}, said["set"], seed=seed, device=device
    )
    graph = source.load()
    check_labels(*_labels(graph, source, run))  # before the work, not after it
    learn_and_save(model, graph, run, checkpoints=policy(run, None, None, None))
    say(f"wrote {run}")
    return model


def _threshold(text: str | None) -> float | str | None:
    if text is None or text == "auto":
        return text
    try:
        return float(text)
    except ValueError:
        raise InputError(f"--threshold {text}: give a probability between 0 and 1, or auto") from None


def _labels(graph: Any, source: Source, run: Path) -> tuple[Any, tuple[str, ...]]:
    """Return the labels of a file, else those of the run; tables that were fitted hold their labels."""
    if source.labels is not None and not source.edges:
        from h3gnn.tables.read import labels_of_nodes

        said = source.reading()
        style = {name: said.get(name) for name in ("header", "delimiter")}
        columns = said.get("label_id_column"), said.get("label_column")
        drop = said.get("unknown_nodes") == "drop"
        labels, names, strange = labels_of_nodes(
            source.labels, graph.node_ids, run, *columns, style, drop=drop
        )
        if strange:
            say(f"note: {source.labels.name}: {strange:,} label(s) of unknown nodes left out")
        return labels, names
    if graph.labels is None:
        where = "these tables have" if source.edges else f"{run} has"
        column = ", or name the column of the features that holds it (--label-column)" if source.edges else ""
        raise InputError(
            f"{where} no labels: give a file with a node and its class in each row (--labels){column}"
        )
    return graph.labels.numpy(), graph.class_names


def _tell(found: Predictions, graph: Any, out: Path, as_json: bool) -> None:
    from h3gnn.storage.origin import made_with

    told = found.as_dict()
    if as_json:
        about = {"out": str(out), "graph": graph.provenance.as_dict(), **made_with()}
        typer.echo(json.dumps(told | about, indent=2))
        return
    for note in found.notes:
        say(f"note: {note}")
    from rich.console import Console
    from rich.table import Table

    held, positive = told["held_out"], told["held_out"]["positive_class"]
    table = Table(title=f"Held-out scores of {found.labelled:,} labelled nodes, {held['folds']} folds")
    table.add_column("measure")
    table.add_column("mean ± std", justify="right")
    for name, mean in held["mean"].items():
        words = name.replace("_", " ")
        of = f" of {positive}" if name in ("average_precision", "precision", "recall") else ""
        spread = f" ± {held['std'][name]:.3f}" if name in held["std"] else ""
        table.add_row(words + of, f"{mean:.3f}{spread}")
    table.add_row("largest class's share", f"{held['majority_share']:.3f}")
    Console().print(table)
    counts = ", ".join(f"{name}: {count:,}" for name, count in list(told["classes"].items())[:8])
    typer.echo(f"{told['nodes']:,} nodes ({counts}), {told['cannot_tell']:,} of them marked as cannot tell")
    typer.echo(found.how)
    typer.echo(f"wrote {out}")
