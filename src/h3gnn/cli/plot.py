"""`h3gnn plot`: the static pictures that papers and slides need."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from h3gnn.cli import settings
from h3gnn.cli.report import MapOption, RunArgument, load_run
from h3gnn.errors import InputError

if TYPE_CHECKING:  # numpy and torch take seconds to import, and --help must not
    from h3gnn.estimator import H3GNN
    from h3gnn.report.findings import Category, Measure

KINDS = ("map", "history", "homophily", "attention", "accuracy")


def plot(
    run: RunArgument,
    kind: Annotated[str, typer.Option("--kind", help=f"What to draw: {', '.join(KINDS)}.")] = "map",
    out: Annotated[Path, typer.Option("--out", help="The picture: .png, .pdf or .svg.")] = Path("h3gnn.png"),
    colour: Annotated[
        str | None,
        typer.Option(
            "--colour",
            help="Of a map's nodes: class, cluster, homophily, degree, difficulty, attention (to "
            "neighbours), attention_linear, attention_hop1, …; the class, or else the cluster, if not given.",
            show_default=False,
        ),
    ] = None,
    map_: MapOption = "tsne",
    seed: settings.SeedOption = 0,
    device: settings.DeviceOption = "auto",
) -> None:
    """Draw a run for a paper or a slide.

    `h3gnn plot run/ --out map.pdf` draws the embedding beside the raw features.

    `h3gnn plot run/ --kind history --out training.svg` draws the training; `homophily` what kind of graph it
    is; `attention` who listens to what; `accuracy` the linear probe by class and by local homophily.
    """
    from h3gnn.report.figures import ENDINGS

    if kind not in KINDS:
        raise InputError(f"--kind {kind}: there are {', '.join(KINDS)}")
    if colour is not None and kind != "map":
        raise InputError(f"--colour is for maps: leave it out with --kind {kind}")
    settings.check_output(out, ENDINGS)
    _draw(load_run(run, device, map_), kind, out, colour, map_, seed)
    typer.echo(f"picture: {out}")


def _draw(model: H3GNN, kind: str, out: Path, colour: str | None, method: str, seed: int) -> None:
    from h3gnn.encoder.tokens import token_names
    from h3gnn.experiments import report_data as collect
    from h3gnn.report import figures, graphics

    if kind == "map":
        from h3gnn.evaluation.projection import place

        chosen = _colour(model, colour)
        shown = {"raw features": collect.raw_features(model.graph_), "H3GNN": model.embedding_}
        places = {title: place(rows, method=method, seed=seed) for title, rows in shown.items()}
        figures.draw_maps(out, places, chosen)
    elif kind == "history":
        log = collect.run_log(model)
        graphics.draw_history(out, log.columns, log.members)
    elif kind == "homophily":
        from h3gnn.graphs.profile import profile

        graphics.plot_profile(profile(model.graph_), out)
    elif kind == "attention":
        attention = collect.token_attention(model)
        if attention is None:
            raise InputError('this run was fitted with fusion="mlp", which has no attention to draw')
        classes = collect.node_classes(model.graph_)
        graphics.draw_attention(out, attention, token_names(model.hops), classes)
    else:
        scores = collect.collect_findings(model).scores
        assert scores is not None
        graphics.draw_accuracy(out, scores)


def _colour(model: H3GNN, key: str | None) -> Category | Measure:
    from h3gnn.experiments.report_data import node_classes, node_clusters, node_measures, token_attention

    classes = node_classes(model.graph_)
    if classes is not None and key in ("class", None):
        return classes
    if key in ("cluster", None):
        return node_clusters(model)
    measures = {one.key: one for one in node_measures(model, model.graph_, token_attention(model))}
    if key not in measures:
        known = ["cluster"] if classes is None else ["class", "cluster"]
        raise InputError(f"--colour {key}: this run has {', '.join([*known, *measures])}")
    return measures[key]
