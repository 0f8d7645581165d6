"""`h3gnn evaluate`: how good embeddings are, by labels that they never saw."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from h3gnn.cli import options
from h3gnn.cli.options import EmbeddingsArgument, Source, TopOption, takes_graph
from h3gnn.cli.output import read_embedded, say, stages
from h3gnn.errors import InputError
from h3gnn.settings import tuned_on

if TYPE_CHECKING:  # torch takes seconds to import, and --help must not
    from h3gnn.evaluation.results import Result
    from h3gnn.graphs.graph import Graph

PANEL = "The evaluation"
ProtocolOption = Annotated[
    str,
    typer.Option(
        help="validation, nested (with --trials, each split chooses settings by its own nodes alone), or "
        "published (chosen on test nodes, only to compare with the paper).",
        rich_help_panel=PANEL,
    ),
]
EpochRuleOption = Annotated[
    str,
    typer.Option(help="With --preset: last, validation or label-free.", rich_help_panel=PANEL),
]
ProbeOption = Annotated[
    str,
    typer.Option(help="logistic, or gradient (a linear layer and Adam).", rich_help_panel=PANEL),
]
SeedsOption = Annotated[
    int, typer.Option(help="With --preset: train so many times.", min=1, rich_help_panel=PANEL)
]
TrialsOption = Annotated[
    int,
    typer.Option(
        help="With --protocol nested and --preset: so many settings are tried around the preset; what "
        "--set or another option gives stays as it is in all of them.",
        min=1,
        rich_help_panel=PANEL,
    ),
]
ClustersOption = Annotated[
    bool, typer.Option("--clusters/--no-clusters", help="Run k-means too.", rich_help_panel=PANEL)
]


@takes_graph
def evaluate(
    *,
    embeddings: EmbeddingsArgument = None,
    source: Source,
    protocol: ProtocolOption = "validation",
    epoch_rule: EpochRuleOption = "last",
    probe: ProbeOption = "logistic",
    clusters: ClustersOption = True,
    top: TopOption = None,
    preset: options.PresetOption = None,
    seeds: SeedsOption = 10,
    trials: TrialsOption = 1,
    epochs: options.EpochsOption = None,
    models: options.ModelsOption = None,
    set_: options.SetOption = None,
    device: options.DeviceOption = "auto",
    as_json: options.JsonOption = False,
) -> None:
    """Score embeddings against labels that training never saw: linear probe and k-means.

    `h3gnn evaluate run/` scores a saved model on the graph it was fitted on, in memory or in files.

    `h3gnn evaluate embeddings.parquet texas` scores a file of embeddings, rows matched by node id.

    `h3gnn evaluate --preset paper texas --seeds 10` trains ten times and scores each.

    `h3gnn evaluate --preset single texas --protocol nested --trials 8` lets each split choose settings.

    A classifier is fitted on each split's training nodes; everything that is chosen is chosen on its
    validation nodes (settings on its training nodes too), and test nodes only score it. Where one class is
    rare, average precision, recall at k and balanced accuracy stand beside accuracy. docs/evaluation.md
    explains the rest.
    """
    asked = {"protocol": protocol, "epoch_rule": epoch_rule, "probe": probe, "cluster": clusters, "top": top}
    how = _checked(asked, trains=preset is not None)
    if trials > 1 and (preset is None or protocol != "nested"):
        raise InputError("--trials is for --preset NAME --protocol nested: there each split chooses")
    if preset is not None:
        if embeddings is not None and source.graph is not None:
            raise InputError(f"--preset trains anew: give the graph alone, without {embeddings}")
        source = replace(source, graph=source.graph or embeddings)
        named = {"epochs": epochs, "n_models": models}
        model = options.build_estimator(preset, named, set_, seed=0, device=device)
        how["fixed"] = tuple(options.given_settings(named, set_))
        result = _of_preset(model, preset, source.benchmark, _load(source), seeds, trials, how)
    else:
        if epochs is not None or models is not None or set_:
            raise InputError("--epochs, --models and --set change what is trained: give --preset as well")
        if embeddings is None:
            raise InputError(
                "say what to evaluate: a run, a file of embeddings, or --preset NAME with a graph"
            )
        source.refuse_alone()
        graph = _load(source, in_files=True) if source.is_given else None
        result = _of_embedding(embeddings, source.benchmark, graph, device, how)
    if as_json:
        typer.echo(json.dumps(result.as_dict(), indent=2))
        return
    from h3gnn.report.tables import print_results

    print_results([result])


def _checked(how: dict[str, Any], *, trains: bool) -> dict[str, Any]:
    """Refuse names that do not exist before any work is done; else return how to evaluate."""
    from h3gnn.evaluation.evaluator import find_probe
    from h3gnn.evaluation.protocols import NESTED, find_protocol

    if how["protocol"] == NESTED.name and not trains:
        raise InputError("--protocol nested chooses among trainings: give --preset NAME with a graph")
    protocol = NESTED if how["protocol"] == NESTED.name else find_protocol(how["protocol"])
    rule = protocol.epoch_rule(how["epoch_rule"])
    if protocol is NESTED and rule != "last":
        raise InputError("--protocol nested looks at the last epoch: leave out --epoch-rule")
    find_probe(how["probe"])
    if not trains and rule in ("validation", "label-free"):
        raise InputError(f"--epoch-rule {rule} needs the epochs of a training: give --preset NAME")
    return {**how, "protocol": protocol}


def _load(source: Source, *, in_files: bool = False) -> Graph:
    loaded = source.load(in_files=in_files)
    for repair in loaded.provenance.repairs:
        say(f"note: {repair.message}")
    return loaded


def _of_preset(
    model: Any, preset: str, name: str | None, graph: Graph, seeds: int, trials: int, how: dict[str, Any]
) -> Result:
    from h3gnn.evaluation.protocols import NESTED, POOLED, VALIDATION
    from h3gnn.experiments.methods import METHODS
    from h3gnn.experiments.run import duration, run_method
    from h3gnn.experiments.search import Allowance, holding, run_nested

    began = time.perf_counter()

    def watch(share: float) -> None:
        spent = time.perf_counter() - began
        left = f"; about {duration(spent / share - spent)} to go" if 0 < share < 1 else ""
        done = f"trained and scored {round(share * seeds)} of {seeds}"
        say((f"{share:.0%} of the search done" if trials > 1 else done) + left)

    models = "1 model" if model.n_models == 1 else f"{model.n_models} models"
    searched = f"up to {trials} settings, each split chooses its own: " if trials > 1 else ""
    of = f"{seeds} × {models} of {model.epochs} epochs on {graph.num_nodes:,} nodes"
    say(f"{searched}{of}, {graph.num_splits} splits")
    method = replace(METHODS["h3gnn"], title=f"H3GNN, preset {preset}", probe=how.pop("probe"))
    fixed = how.pop("fixed")
    given = {
        "seeds": range(seeds),
        "model": model.set_params(verbose=True),
        "device": model.device,
        "name": name,
    }
    pooled = tuned_on(preset) == graph.provenance.sha256
    if how["protocol"] is NESTED:
        if pooled:
            raise InputError(
                f"the preset {preset} was chosen by all splits of this graph together, which is `pooled` and "
                "not `nested`: start from `single`, `quick` or another preset, and give --trials"
            )
        if trials > 1:
            options.say_fixed(fixed, method.ranges)
        method = holding(method, fixed, trials) if trials > 1 else replace(method, ranges={})
        found = run_nested(method, graph, allowance=Allowance(trials), top=how["top"], watch=watch, **given)
        return found.results[NESTED.name]
    result = run_method(method, graph, watch=watch, **given, **how)
    return replace(result, protocol=POOLED.name) if pooled and how["protocol"] is VALIDATION else result


def _of_embedding(
    embeddings: str, name: str | None, graph: Graph | None, device: str, how: dict[str, Any]
) -> Result:
    import torch

    from h3gnn.experiments.methods import given
    from h3gnn.experiments.run import run_method

    read = read_embedded(embeddings, graph, device, to_score=True)
    if read.graph is None:
        raise InputError(f"{embeddings} holds embeddings alone: name the graph with the labels as well")
    made = given(
        read.method, torch.from_numpy(read.values), read.params, epoch=read.epochs, probe=how.pop("probe")
    )
    seeds = [] if read.seed is None else [read.seed]
    with stages() as told:
        return run_method(made, read.graph, seeds=seeds, device=device, name=name, told=told, **how)
