"""`h3gnn predict`: classes or numbers of unlabelled nodes, from the labelled ones."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from h3gnn.cli import options
from h3gnn.cli.databases import FoundRun, ask_tables, is_about_tables
from h3gnn.cli.options import Source, Tables, Text, Use, argument, option, takes_graph
from h3gnn.cli.output import echo_json, echo_written, print_table, say, stages, work_alone, write_table
from h3gnn.cli.training import Training, checkpoint_policy, fit_or_continue
from h3gnn.errors import InputError, counted, shortened

if TYPE_CHECKING:  # torch takes seconds to import, and --help must not
    from h3gnn.answers.prediction import Predictions
    from h3gnn.estimator import H3GNN
    from h3gnn.graphs.graph import Graph

_opt = partial(option, panel="Decision")
_tables = partial(option, panel="Several tables")
MOST_IMPORTANT = 8
STEPS = ((0.6, "fitting heads"), (0.8, "scoring them"), (2.0, "permutation importance and predictions"))
"""The steps of a prediction, and the completed shares at which they end."""


@partial(takes_graph, without=("graph", "split_columns", "data_dir", "type"))
def predict(
    *,
    run: Annotated[
        Path, argument("Folder of `h3gnn fit --out`; with --edges or --tables, a new folder.", "RUN")
    ],
    target: Annotated[
        Text,
        argument(
            "Of several tables: `loan.status`, or a condition, `loan.status=B,D`, `film.votes>100`.", "TARGET"
        ),
    ] = None,
    out: Annotated[Path, option("The file: .parquet or .csv.")] = Path("predictions.parquet"),
    tables: Tables,
    test_from: Annotated[
        Text,
        _tables(
            "Learn from labelled rows before this date, and score and predict the later ones.", metavar="DATE"
        ),
    ] = None,
    source: Source,
    head: Annotated[str, _opt("auto, logistic, boosting or blend: what predicts.")] = "auto",
    class_weight: Annotated[str, _opt("none, or balanced: favours rare classes.")] = "none",
    threshold: Annotated[
        Text, _opt("Probability of the rarer of two classes, or of the condition; auto learns it.")
    ] = None,
    cannot_tell_below: Annotated[float | None, _opt("Mark less probable classes; default: learned.")] = None,
    coverage: Annotated[float, _opt("Share of numbers inside their intervals.")] = 0.9,
    labelled_too: Annotated[
        bool, option("Also predict labelled nodes, without their label.", "--all")
    ] = False,
    allow_leaks: Annotated[bool, option("Accept features that contain the class.", "--allow-leaks")] = False,
    new_features: options.NewFeaturesOption = None,
    new_edges: options.NewEdgesOption = None,
    new_tables: options.NewTablesOption = None,
    use: Use,
) -> None:
    """Predict the class or number of every unlabelled node, with held-out scores.

    Linear models, trees and neighbours' labels are pooled by cross-validation. Classes have calibrated
    probabilities, numbers have intervals. The scores are measured on labelled nodes that no choice has seen.

    `h3gnn predict run/ --labels fraud.csv --threshold auto --out predictions.csv`

    Of several linked tables, name a column or a condition: `h3gnn predict bank/ loan.status=B,D --tables
    data/ --label-time row` fits the rows of `loan` in the new folder bank/, without their status, and
    `h3gnn predict films/ films.rating --test-from 2024-01-01` scores on the later rows. `--new-tables today/`
    predicts rows that were added to the tables since, without another fit.
    """
    from h3gnn.answers.learning import HEADS
    from h3gnn.answers.prediction import predict_nodes
    from h3gnn.errors import check_choice
    from h3gnn.evaluation.decisions import Rule
    from h3gnn.storage.runs import made_with, store_predictions

    options.check_table(out)
    check_choice("head", head, HEADS)
    rule = Rule(class_weight, _threshold(threshold), cannot_tell_below, coverage)
    found_run, asked, extension, rows = FoundRun(run), None, None, None
    label_name: str | None
    if is_about_tables(run, tables) or source.edges:
        work_alone()
    if is_about_tables(run, tables):
        found_run, asked = ask_tables(
            run, target, tables, source, use.device, test_from, allow_leaks=allow_leaks
        )
        model, labels, names, label_name = asked.model, asked.labels, asked.names, asked.title
        if new_tables is not None and found_run.database is not None:
            extension, rows = found_run.database.extend(asked.fitted, new_tables)
            options.say_notes(extension)
    else:
        _check_single(target, tables, test_from, new_tables)
        model = _open_or_fit(run, source, tables, use)
        labels, names, label_name = _labels(model.graph_, source, run)
    rule.check(max(2, len(names)) if names else 0)
    if new_features is not None or new_edges is not None:
        extension = options.extend_run(model, new_features, new_edges, source.reading())
    if model.graph_.in_memory:
        work_alone()
    with stages(spoken=True) as stage, model.sharing() as share, model.embedding_rows() as embedding:
        share.end()
        work_alone()
        found = predict_nodes(
            model.graph_,
            embedding,
            labels,
            names,
            rule,
            head,
            extension=extension,
            test=None if asked is None else asked.test,
            labelled_too=labelled_too or (extension is None and asked is not None and asked.predicts_all),
            label_name=label_name,
            table="" if asked is None else asked.fitted.type,
            times=None if asked is None else asked.times,
            allow_leaks=allow_leaks,
            measure_importance=new_tables is None,
            seed=tables.seed,
            progress=lambda share: stage(next(words for end, words in STEPS if share < end), share),
        )
    write_table(out, (rows or found_run).with_names(found.table), safe=use.safe_csv)
    if new_tables is None:  # the importance of columns is measured
        store_predictions(found_run.run, found.as_dict())
    drift = () if extension is None else extension.repairs
    if use.as_json:
        summary = found.as_dict() | {"out": str(out), "repairs": [one.as_dict() for one in drift]}
        echo_json(summary | {"graph": model.graph_.provenance.as_dict(), **made_with()})
        return
    printed = {one.message for one in drift}
    printed |= {one.message for one in model.graph_.provenance.repairs} if found_run.is_new else set()
    for note in (one for one in found.notes if one not in printed):
        say(f"note: {note}")
    _report(found, "nodes" if asked is None else "rows", short=new_tables is not None)
    echo_written(out)


def _check_single(target: str | None, tables: Tables, test_from: str | None, new_tables: str | None) -> None:
    """Reject what is for several tables."""
    tables.check_unused()
    if target is not None or test_from is not None or new_tables is not None:
        name = target or ("--test-from" if new_tables is None else "--new-tables")
        message = f"{name} needs several tables: name them (--tables SOURCE), or omit it"
        raise InputError(message, code="option-needs-tables")


def _open_or_fit(run: Path, source: Source, tables: Tables, use: Use) -> H3GNN:
    """Return the model of a run; given tables, fit it first, or continue where the same command ended."""
    settings = {"preset": tables.preset, "epochs": tables.epochs, "set": tables.set_}
    given = [name for name, value in (*settings.items(), ("undirected", source.undirected)) if value]
    if not source.edges:
        if source.features or given:
            name = "features" if source.features else given[0]
            raise InputError(f"--{name} needs a fit: add --edges, or omit it", code="option-needs-edges")
        model = use.open(run, in_files=True)
        options.keep_embedding(model, run)
        return model
    from h3gnn.answers.prediction import check_labels
    from h3gnn.storage.models import DESCRIPTION, check_folder
    from h3gnn.storage.runs import has_begun

    if use.unfinished:
        raise InputError("--unfinished uses a run as it is: omit --edges", code="unfinished-and-edges")
    check_folder(run)
    named = {"epochs": tables.epochs}
    model = options.build_estimator(tables.preset, named, tables.set_, seed=tables.seed, device=use.device)
    graph = source.load()
    check_labels(*_labels(graph, source, run)[:2])  # before the work, not after it
    if (run / DESCRIPTION).exists() and not has_begun(run):
        return _open_same(run, model, graph)
    fit_or_continue(Training(model, graph, run, checkpoints=checkpoint_policy(run)))
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
        from h3gnn.tables.edges import types_in_ids
        from h3gnn.tables.read import labels_of_nodes

        style = {"header": source.header, "delimiter": source.delimiter}
        task, types = source.task or "auto", types_in_ids(graph)
        columns, drop = (source.label_id_column, source.label_column), source.unknown_nodes == "drop"
        known, repairs = labels_of_nodes(
            source.labels, graph.node_ids, run, *columns, style, task=task, drop=drop, types=types
        )
        for repair in repairs:
            say(f"note: {repair.message}")
        if known["labels"] is None:
            return known["targets"], (), known["label_name"]
        return known["labels"], known["class_names"], known["label_name"]
    if graph.targets is not None:
        return graph.targets.numpy(), (), None
    if graph.labels is None:
        where = "the tables have" if source.edges else f"{run} has"
        rare = [one.name for one in graph.plan.used if one.is_mostly_missing] if graph.plan else []
        named = f" known for few rows: {shortened(rare)}" if rare else " of the features"
        column = f", or name a column{named} (--label-column)" if source.edges else ""
        raise InputError(
            f"{where} no labels: give a file with one node and its class per row (--labels){column}",
            code="no-labels",
        )
    return graph.labels.numpy(), graph.class_names, None


def _report(found: Predictions, what: str, *, short: bool) -> None:
    """Print the scores, what they come from, and how many nodes or rows are predicted.

    A short report, on new rows, has the main score only: the others were printed with the fit.
    """
    summary = found.as_dict()
    if short:
        held, main = summary["held_out"], summary["main_measure"]
        score = f"{_figure(held['mean'][main])} ± {_figure(held['standard_error'][main])}"
        typer.echo(f"held-out {_title(main)} of the {found.labelled:,} labelled {what}: {score}")
        _report_counts(summary, f"new {what}")
        return
    held, positive, rows = summary["held_out"], summary["held_out"]["positive_class"], []
    errors = held["standard_error"]
    for name, mean in held["mean"].items():
        of = f" of {positive}" if name in ("average_precision", "precision", "recall") else ""
        spread = f" ± {_figure(errors[name])}" if errors.get(name) else ""
        rows.append([_title(name).replace("nodes", what) + of, _figure(mean) + spread])
    if held["majority_share"] is not None:
        rows.append(["largest class's share", f"{held['majority_share']:.3f}"])
    title = f"Held-out scores of {found.labelled:,} labelled {what}, {held['folds']} folds"
    if "tested" in held:
        title = f"Scores of {counted(held['tested'], 'later row')}; heads learn from "
        title += counted(found.labelled, "earlier row")
    print_table(title, ("measure", "mean ± standard error"), rows, right=("mean ± standard error",))
    _report_parts(found, summary["main_measure"])
    _report_counts(summary, what)
    typer.echo(found.how)


def _title(measure: str) -> str:
    from h3gnn.evaluation.metrics import PREDICTION_TITLES

    return PREDICTION_TITLES.get(measure, measure.replace("_", " "))


def _figure(value: float) -> str:
    """Return three decimals, or none of a large number."""
    return f"{value:.3f}" if abs(value) < 1000 else f"{value:,.0f}"


def _report_parts(found: Predictions, main: str) -> None:
    """Print what each part contributes, and the columns that matter most."""
    measure, rows = _title(main), []
    for at, one in enumerate(found.scores.contributions):
        gain = "" if one.gain is None else f"{one.gain:+.3f} ± {one.gain_error:.3f}"
        rows.append([f"{'+ ' if at else ''}{one.part}", f"{one.score:.3f} ± {one.error:.3f}", gain])
    if rows:
        print_table(f"Held-out {measure} by what the heads use", ("part", measure, "gain"), rows)
    if found.embedding_note:
        typer.echo(found.embedding_note)
    important = [
        [name, f"{mean:.3f} ± {error:.3f}"] for name, mean, error in found.importance if mean > 2 * error
    ]
    if important:
        title = "Permutation importance: increase of the loss when a column is shuffled"
        print_table(title, ("column", "increase"), important[:MOST_IMPORTANT])


def _report_counts(summary: dict[str, Any], what: str) -> None:
    predicted = counted(summary["nodes"], what.removesuffix("s"))
    if "classes" not in summary:
        typer.echo(predicted)
        return
    classes = list(summary["classes"].items())
    counts = ", ".join(f"{name}: {count:,}" for name, count in classes[:8]) + (", …" if classes[8:] else "")
    marked = f"{summary['cannot_tell']:,} of them marked as cannot tell"
    typer.echo(f"{predicted} ({counts}), {marked}")
