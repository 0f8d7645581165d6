"""`h3gnn plot`: the static pictures that papers and slides need."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from h3gnn.cli import settings
from h3gnn.cli.report import MapOption, RunArgument, check_map
from h3gnn.errors import InputError

if TYPE_CHECKING:  # numpy and torch take seconds to import, and --help must not
    from h3gnn.estimator import H3GNN
    from h3gnn.findings import Category, Measure

KINDS = ("map", "history", "homophily", "attention", "accuracy")
ENDINGS = (".png", ".pdf", ".svg")


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
    from h3gnn.estimator import H3GNN
    from h3gnn.experiments.gather import refuse_files
    from h3gnn.training.resources import pick_device

    if kind not in KINDS:
        raise InputError(f"--kind {kind}: there are {', '.join(KINDS)}")
    if colour is not None and kind != "map":
        raise InputError(f"--colour is for maps: leave it out with --kind {kind}")
    settings.check_output(out, ENDINGS)
    check_map(map_)
    pick_device(device)
    model = H3GNN.load(run).set_params(device=device)
    refuse_files(model)
    _draw(model, kind, out, colour, map_, seed)
    typer.echo(f"picture: {out}")


def _draw(model: H3GNN, kind: str, out: Path, colour: str | None, method: str, seed: int) -> None:
    from h3gnn.experiments import gather
    from h3gnn.report import graphics

    if kind == "map":
        _draw_map(model, out, colour, method, seed)
    elif kind == "history":
        graphics.draw_history(out, gather.run_log(model).columns)
    elif kind == "homophily":
        from h3gnn.graphs.profile import profile
        from h3gnn.report.homophily import plot_profile

        plot_profile(profile(model.graph_), out)
    elif kind == "attention":
        attention = gather.token_attention(model)
        if attention is None:
            raise InputError('this run was fitted with fusion="mlp", which has no attention to draw')
        graphics.draw_attention(
            out, attention, gather.token_names(model.hops), gather.node_groups(model, "class")
        )
    else:
        scores = gather.gather(model).scores
        assert scores is not None
        graphics.draw_accuracy(out, scores)


def _draw_map(model: H3GNN, out: Path, colour: str | None, method: str, seed: int) -> None:
    from h3gnn.experiments.gather import raw_features
    from h3gnn.report.maps import draw_maps
    from h3gnn.report.places import place

    chosen = _colour(model, colour)
    maps = {
        title: place(rows, method=method, seed=seed)
        for title, rows in (("raw features", raw_features(model.graph_)), ("H3GNN", model.embedding_))
    }
    draw_maps(out, maps, chosen)


def _colour(model: H3GNN, key: str | None) -> Category | Measure:
    from h3gnn.experiments.gather import node_groups, node_measures, token_attention

    for name in ("class", "cluster"):
        if key in (name, None):
            groups = node_groups(model, name)
            if groups is not None:
                return groups
    measures = {one.key: one for one in node_measures(model, model.graph_, token_attention(model))}
    if key is None or key not in measures:
        known = [name for name in ("class", "cluster") if node_groups(model, name) is not None]
        raise InputError(f"--colour {key}: this run has {', '.join([*known, *measures])}")
    return measures[key]
