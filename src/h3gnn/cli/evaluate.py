"""`h3gnn evaluate`: how good embeddings are, by labels that they never saw."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from h3gnn.cli import options
from h3gnn.cli.options import EmbeddingsArgument, Source, TopOption, option, takes_graph
from h3gnn.cli.output import echo_json, read_embedded, say, say_repairs, stages
from h3gnn.errors import InputError
from h3gnn.tuned import tuned_on

if TYPE_CHECKING:  # torch takes seconds to import, and --help must not
    from h3gnn.evaluation.results import Result
    from h3gnn.graphs.graph import Graph

PANEL = "Evaluation"


@takes_graph
def evaluate(
    *,
    embeddings: EmbeddingsArgument = None,
    source: Source,
    protocol: Annotated[
        str,
        option(
            "validation, nested (with --trials, each split chooses settings by its own nodes), or published "
            "(chosen on test nodes, only to compare with the paper).",
            panel=PANEL,
        ),
    ] = "validation",
    epoch_rule: Annotated[
        str, option("With --preset: last, validation or label-free.", panel=PANEL)
    ] = "last",
    probe: Annotated[str, option("logistic, or gradient (linear layer and Adam).", panel=PANEL)] = "logistic",
    clusters: Annotated[bool, option("Also run k-means.", "--clusters/--no-clusters", panel=PANEL)] = True,
    top: TopOption = None,
    preset: options.PresetOption = None,
    seeds: Annotated[int, option("With --preset: number of trainings.", panel=PANEL, min=1)] = 10,
    trials: Annotated[
        int,
        option(
            "With --protocol nested and --preset: number of settings to try around the preset; options "
            "that are given stay fixed.",
            panel=PANEL,
            min=1,
        ),
    ] = 1,
    epochs: options.EpochsOption = None,
    models: options.ModelsOption = None,
    set_: options.SetOption = None,
    device: options.DeviceOption = "auto",
    as_json: options.JsonOption = False,
) -> None:
    """Score embeddings against labels that training never saw: linear probe and k-means.

    `h3gnn evaluate run/`, `h3gnn evaluate embeddings.parquet texas`, or, to train and score ten times,
    `h3gnn evaluate --preset paper texas --seeds 10`
    """
    asked = {"protocol": protocol, "epoch_rule": epoch_rule, "probe": probe, "cluster": clusters, "top": top}
    how = _checked(asked, trains=preset is not None)
    if trials > 1 and (preset is None or protocol != "nested"):
        raise InputError("--trials needs --preset NAME and --protocol nested", code="trials-need-nested")
    if preset is not None:
        if embeddings is not None and source.graph is not None:
            raise InputError(f"--preset trains again: omit {embeddings}", code="preset-and-embeddings")
        source = replace(source, graph=source.graph or embeddings)
        named = {"epochs": epochs, "n_models": models}
        model = options.build_estimator(preset, named, set_, seed=0, device=device)
        how["fixed"] = tuple(options.given_settings(named, set_))
        result = _of_preset(model, preset, source.benchmark, _load(source), seeds, trials, how)
    else:
        if epochs is not None or models is not None or set_:
            raise InputError("--epochs, --models and --set need --preset", code="option-needs-preset")
        if embeddings is None:
            raise InputError(
                "give a run, a file of embeddings, or --preset NAME with a graph", code="no-embeddings"
            )
        source.refuse_alone()
        graph = _load(source, in_files=True) if source.is_given else None
        result = _of_embedding(embeddings, source.benchmark, graph, device, how)
    if as_json:
        echo_json(result.as_dict())
        return
    from h3gnn.report.tables import print_results

    print_results([result])


def _checked(how: dict[str, Any], *, trains: bool) -> dict[str, Any]:
    """Reject unknown names before any work; return the checked arguments."""
    from h3gnn.evaluation.evaluator import find_probe
    from h3gnn.evaluation.protocols import NESTED, find_protocol

    if how["protocol"] == NESTED.name and not trains:
        raise InputError("--protocol nested needs --preset NAME with a graph", code="nested-needs-preset")
    protocol = NESTED if how["protocol"] == NESTED.name else find_protocol(how["protocol"])
    rule = protocol.epoch_rule(how["epoch_rule"])
    if protocol is NESTED and rule != "last":
        raise InputError("--protocol nested uses the last epoch: omit --epoch-rule", code="nested-epoch-rule")
    find_probe(how["probe"])
    if not trains and rule in ("validation", "label-free"):
        raise InputError(f"--epoch-rule {rule} needs --preset NAME", code="option-needs-preset")
    return {**how, "protocol": protocol}


def _load(source: Source, *, in_files: bool = False) -> Graph:
    loaded = source.load(in_files=in_files)
    say_repairs(loaded)
    return loaded


def _of_preset(
    model: Any, preset: str, name: str | None, graph: Graph, seeds: int, trials: int, how: dict[str, Any]
) -> Result:
    from h3gnn.evaluation.protocols import NESTED, POOLED, VALIDATION
    from h3gnn.experiments.methods import METHODS
    from h3gnn.experiments.run import duration, run_method
    from h3gnn.experiments.search import fix_settings, run_nested
    from h3gnn.experiments.spaces import SearchBudget

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
                f"the preset {preset} was chosen by all splits of this graph (`pooled`, not `nested`); start "
                "from `single`, `quick` or another preset, and give --trials",
                code="preset-is-pooled",
            )
        if trials > 1:
            options.say_fixed(fixed, method.ranges)
        method = fix_settings(method, fixed, trials) if trials > 1 else replace(method, ranges={})
        found = run_nested(method, graph, budget=SearchBudget(trials), top=how["top"], watch=watch, **given)
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
        raise InputError(f"{embeddings} has no labels: also give the graph", code="no-labels")
    made = given(
        read.method, torch.from_numpy(read.values), read.params, epoch=read.epochs, probe=how.pop("probe")
    )
    seeds = [] if read.seed is None else [read.seed]
    with stages() as told:
        return run_method(made, read.graph, seeds=seeds, device=device, name=name, scoring=told, **how)
