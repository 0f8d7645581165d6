"""`h3gnn evaluate` and `h3gnn cluster`: score and cluster the embeddings of a run or a file."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from h3gnn.cli import options
from h3gnn.cli.databases import FoundRun, find_run, is_about_tables
from h3gnn.cli.options import Number, Source, Tables, Use, option, takes_graph
from h3gnn.cli.output import (
    EMBEDDING_ENDINGS,
    echo_json,
    echo_written,
    is_parts,
    print_table,
    say,
    say_repairs,
    stages,
    work_alone,
    write_table,
)
from h3gnn.errors import InputError
from h3gnn.evaluation import MAX_CLUSTERS
from h3gnn.tuned import tuned_on

if TYPE_CHECKING:  # torch takes seconds to import, and --help must not
    import numpy as np
    import numpy.typing as npt

    from h3gnn.estimator import H3GNN
    from h3gnn.evaluation.results import Result
    from h3gnn.graphs.graph import Graph
    from h3gnn.ondisk.mapped import MappedGraph

_opt = partial(option, panel="Evaluation")
_clusters = partial(option, panel="Clusters")


@partial(takes_graph, without=("seed", "safe_csv"))
def evaluate(
    *,
    embeddings: options.EmbeddingsArgument = None,
    source: Source,
    protocol: Annotated[
        str,
        _opt(
            "validation, nested (with --trials, each split chooses settings by its own nodes), or published "
            "(chosen on test nodes, only to compare with the paper)."
        ),
    ] = "validation",
    epoch_rule: Annotated[str, _opt("With --preset: last, validation or label-free.")] = "last",
    probe: Annotated[str, _opt("logistic, or gradient (linear layer and Adam).")] = "logistic",
    clusters: Annotated[bool, _opt("Also run k-means.")] = True,
    top: options.TopOption = None,
    preset: options.PresetOption = None,
    seeds: Annotated[int, _opt("With --preset: number of trainings.", min=1)] = 10,
    trials: Annotated[int, _opt("With --protocol nested: settings to try around the preset.", min=1)] = 1,
    epochs: options.EpochsOption = None,
    models: options.ModelsOption = None,
    set_: options.SetOption = None,
    tables: Tables,
    use: Use,
) -> None:
    """Score embeddings against labels that training never saw: linear probe and k-means.

    `h3gnn evaluate run/`, `h3gnn evaluate embeddings.parquet texas`, or, to train and score ten times,
    `h3gnn evaluate --preset paper texas --seeds 10`. Of several linked tables, `h3gnn evaluate bank/ --type
    loan.status` scores the rows of a predicted column.
    """
    if preset is not None or embeddings is None or is_about_tables(Path(embeddings), tables):
        work_alone()
    found = None if embeddings is None else find_run(Path(embeddings), tables, use.device)
    if found is not None and found.database is not None:
        embeddings, preset, epochs, set_ = str(found.run), None, None, None
    asked = {"protocol": protocol, "epoch_rule": epoch_rule, "probe": probe, "cluster": clusters, "top": top}
    how = _checked(asked, trains=preset is not None)
    if trials > 1 and (preset is None or protocol != "nested"):
        raise InputError("--trials needs --preset NAME and --protocol nested", code="trials-need-nested")
    if preset is not None:
        if embeddings is not None and source.graph is not None:
            raise InputError(f"--preset trains again: omit {embeddings}", code="preset-and-embeddings")
        source = replace(source, graph=source.graph or embeddings)
        named = {"epochs": epochs, "n_models": models}
        model = options.build_estimator(preset, named, set_, seed=0, device=use.device)
        how["fixed"] = tuple(options.given_settings(named, set_))
        result = _evaluate_preset(model, preset, source.benchmark, _load(source), seeds, trials, how)
    else:
        if epochs is not None or models is not None or set_:
            raise InputError("--epochs, --models and --set need --preset", code="option-needs-preset")
        if embeddings is None:
            message = "give a run, a file of embeddings, or --preset NAME with a graph"
            raise InputError(message, code="no-embeddings")
        source.check_unused()
        graph = _load(source, in_files=True) if source.is_given else None
        result = _evaluate_embeddings(embeddings, source.benchmark, graph, use, how, found)
    if use.as_json:
        echo_json(result.as_dict())
        return
    from h3gnn.report.tables import print_results

    print_results([result])


def _checked(how: dict[str, Any], *, trains: bool) -> dict[str, Any]:
    """Reject unknown names before any work; return the checked arguments."""
    from h3gnn.evaluation.evaluator import find_probe
    from h3gnn.evaluation.protocols import NESTED, find_protocol

    nested = how["protocol"] == NESTED.name
    if nested and not trains:
        raise InputError("--protocol nested needs --preset NAME with a graph", code="nested-needs-preset")
    protocol = NESTED if nested else find_protocol(how["protocol"])
    rule = protocol.epoch_rule(how["epoch_rule"])
    if nested and rule != "last":
        raise InputError("--protocol nested uses the last epoch: omit --epoch-rule", code="nested-epoch-rule")
    find_probe(how["probe"])
    if not trains and rule in ("validation", "label-free"):
        raise InputError(f"--epoch-rule {rule} needs --preset NAME", code="option-needs-preset")
    return {**how, "protocol": protocol}


def _load(source: Source, *, in_files: bool = False) -> Graph:
    loaded = source.load(in_files=in_files)
    say_repairs(loaded)
    return loaded


def _evaluate_preset(
    model: H3GNN, preset: str, name: str | None, graph: Graph, seeds: int, trials: int, how: dict[str, Any]
) -> Result:
    """Train with a preset once per seed and score every model."""
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
    fixed, verbose = how.pop("fixed"), model.set_params(verbose=True)
    given: dict[str, Any] = {
        "seeds": range(seeds),
        "model": verbose,
        "device": model.device,
        "name": name,
        "watch": watch,
    }
    pooled = tuned_on(preset) == graph.provenance.sha256
    if how["protocol"] is not NESTED:
        result = run_method(method, graph, **given, **how)
        return replace(result, protocol=POOLED.name) if pooled and how["protocol"] is VALIDATION else result
    if pooled:
        raise InputError(
            f"the preset {preset} was chosen by all splits of this graph (`pooled`, not `nested`); start "
            "from `single`, `quick` or another preset, and give --trials",
            code="preset-is-pooled",
        )
    if trials > 1:
        options.say_fixed(fixed, method.ranges)
    method = fix_settings(method, fixed, trials) if trials > 1 else replace(method, ranges={})
    found = run_nested(method, graph, budget=SearchBudget(trials), top=how["top"], **given)
    return found.results[NESTED.name]


def _evaluate_embeddings(
    embeddings: str,
    name: str | None,
    graph: Graph | None,
    use: Use,
    how: dict[str, Any],
    found: FoundRun | None,
) -> Result:
    import torch

    from h3gnn.experiments.methods import given
    from h3gnn.experiments.run import run_method

    read = read_embedded(embeddings, graph, use, to_score=True)
    if read.graph is None:
        raise InputError(f"{embeddings} has no labels: also give the graph", code="no-labels")
    scored = read.graph if found is None else found.asked_last(read.graph)
    rows = torch.from_numpy(read.values)
    method = given(read.method, rows, read.params, epoch=read.epochs, probe=how.pop("probe"))
    seeds = [] if read.seed is None else [read.seed]
    with stages() as stage:
        return run_method(method, scored, seeds=seeds, device=use.device, name=name, scoring=stage, **how)


@takes_graph
def cluster(
    *,
    embeddings: options.EmbeddingsArgument = None,
    source: Source,
    out: options.TableOption = None,
    clusters: Annotated[
        Number, _clusters("Number; default: as many as classes, or by silhouette.", min=1)
    ] = None,
    max_clusters: Annotated[int, _clusters("The silhouette chooses from 2 to this.", min=2)] = MAX_CLUSTERS,
    starts: Annotated[int, _clusters("Initializations of k-means.", min=1)] = 10,
    tables: Tables,
    use: Use,
) -> None:
    """Cluster the nodes by their embeddings with k-means; labels are not needed.

    `h3gnn cluster run/ --out clusters.csv`, or of several linked tables `h3gnn cluster f1/ --type drivers`
    """
    from h3gnn.graphs.ids import check_ids

    if embeddings is None:
        raise InputError("give a folder of `h3gnn fit --out`, or a file of embeddings", code="no-embeddings")
    options.check_table(out)
    source.check_unused()
    found_run = find_run(Path(embeddings), tables, use.device)
    graph = source.load() if source.is_given else None
    read = read_embedded(str(found_run.run), graph, use)
    if out is not None:
        check_ids(read.ids, out)
    found, summary = _cluster(read, clusters, max_clusters, starts, tables.seed)
    if out is not None:
        import pandas as pd

        table = pd.DataFrame({"node": read.ids, "cluster": found})
        write_table(out, found_run.with_names(table), safe=use.safe_csv)
        summary["out"] = str(out)
    if use.as_json:
        echo_json(summary)
        return
    _print_clusters(summary)
    echo_written(out)


def _cluster(
    read: Embedded, clusters: int | None, most: int, starts: int, seed: int
) -> tuple[npt.NDArray[np.int64], dict[str, Any]]:
    import numpy as np

    from h3gnn.evaluation.clustering import compare_clusters, pick_clusters
    from h3gnn.storage.runs import made_with

    nodes = len(read.values)
    labels = None if read.graph is None or read.graph.labels is None else read.graph.labels.numpy()
    classes = 0 if labels is None else np.unique(labels[labels >= 0]).size
    count = clusters or classes or None
    if (count or 2) > nodes:
        raise InputError(f"{count or 2} clusters need as many nodes; there are {nodes}", code="too-few-nodes")
    given = None if count is None else [count]
    found, measured = pick_clusters(read.values, given, most=most, n_init=starts, seed=seed)
    sizes = np.bincount(found).tolist()
    silhouettes = {str(one): None if np.isnan(value) else value for one, value in measured.items()}
    return found, {
        "nodes": nodes,
        "clusters": len(sizes),
        "chosen_by": "--clusters" if clusters else "classes" if classes else "silhouette",
        "sizes": sizes,
        "silhouette": max((value for value in silhouettes.values() if value is not None), default=None),
        "silhouettes": silhouettes,
        "clustering": compare_clusters(found, labels) if labels is not None and classes else None,
        "method": read.method,
        "graph": None if read.graph is None else read.graph.provenance.as_dict(),
        "params": read.params,
        "starts": starts,
        "seed": seed,
        **made_with(),
    }


def _print_clusters(summary: dict[str, Any]) -> None:
    nodes, silhouette = summary["nodes"], summary["silhouette"]
    rows = [
        [str(number), f"{size:,}", f"{100 * size / nodes:.1f} %"]
        for number, size in enumerate(summary["sizes"])
    ]
    title = f"{summary['clusters']} clusters of {nodes:,} nodes"
    print_table(title, ("cluster", "nodes", "share"), rows, right=("nodes", "share"))
    typer.echo(f"silhouette {'–' if silhouette is None else f'{silhouette:.3f}'}")
    if summary["chosen_by"] == "silhouette":
        others = ", ".join(f"{k}: {v:.3f}" for k, v in summary["silhouettes"].items() if v is not None)
        typer.echo(f"silhouette by number of clusters: {others}")
    if summary["clustering"] is not None:
        agreed = ", ".join(f"{name} {100 * value:.1f} %" for name, value in summary["clustering"].items())
        typer.echo(f"agreement with the classes: {agreed}")


@dataclass(frozen=True)
class Embedded:
    """An embedding `[nodes, D]` with its nodes' ids, its graph if there is one, and its origin."""

    values: npt.NDArray[np.float32]
    ids: npt.NDArray[Any]
    graph: Graph | None
    method: str
    params: dict[str, Any]
    seed: int | None = None
    epochs: int = 0


def read_embedded(
    given: str,
    graph: Graph | MappedGraph | None,
    use: Use,
    *,
    to_score: bool = False,
) -> Embedded:
    """Return the embedding of a run or a file; with a graph, one row for each of its nodes in their order.

    With `to_score`, a graph on disk is accepted, of which only the labelled nodes are embedded.
    """
    path = Path(given)
    if path.is_dir() and not is_parts(path):
        return _embed_run(path, graph, use, to_score)
    if path.suffix.lower() not in EMBEDDING_ENDINGS:
        raise InputError(
            f"{given} is neither a folder of `h3gnn fit --out` nor a file that ends in one of "
            f"{', '.join(EMBEDDING_ENDINGS)}",
            code="not-embeddings",
        )
    work_alone()
    return _read_file(path, graph)


def _embed_run(folder: Path, given: Graph | MappedGraph | None, use: Use, to_score: bool) -> Embedded:
    from h3gnn.graphs.graph import with_splits
    from h3gnn.settings import kept_for

    model = use.open(folder, in_files=to_score or given is not None)
    whole: Graph | MappedGraph = model.graph_ if given is None else given
    if given is None:
        options.keep_embedding(model, folder)
    if whole.in_memory:
        work_alone()
    if not whole.in_memory:
        values, graph = _labelled_rows(model, whole)
    elif given is None:
        values, graph = model.embedding_, with_splits(whole)
    else:
        values, graph = model.transform(whole), whole
    params = kept_for("log", model.get_settings())
    seed = model.random_state if isinstance(model.random_state, int) else None
    return Embedded(values, graph.node_ids, graph, "H3GNN", params, seed, model.history_.completed)


def _labelled_rows(model: H3GNN, graph: MappedGraph) -> tuple[npt.NDArray[np.float32], Graph]:
    """Return the embeddings of a graph's labelled nodes, and these nodes."""
    import numpy as np
    import torch

    from h3gnn.inference import CHUNK
    from h3gnn.ondisk.mapped import labelled_nodes
    from h3gnn.resources import check_memory

    nodes, labelled = labelled_nodes(graph)
    width = len(model.get_feature_names_out())
    check_memory(8 * len(nodes) * width, f"the embeddings of {len(nodes):,} labelled nodes")
    if len(nodes) < graph.num_nodes:
        say(f"note: of a graph on disk, only the {len(nodes):,} labelled nodes are scored")
    kept, wanted = [np.empty((0, width), dtype=np.float32)], nodes.numpy()
    with model.sharing() as share:
        first = share.own(graph.num_nodes, CHUNK).start
        for chunk in model.embedding_chunks(graph):
            begin, end = np.searchsorted(wanted, [first, first + len(chunk)])
            kept.append(chunk[wanted[begin:end] - first])
            first += len(chunk)
        share.complete()
        rows = share.gather(torch.from_numpy(np.concatenate(kept)))
    work_alone()
    return rows.numpy(), labelled


def _read_file(path: Path, given: Graph | MappedGraph | None) -> Embedded:
    import hashlib

    import numpy as np
    import pandas as pd

    from h3gnn.graphs.ids import find_ids, quoted
    from h3gnn.ondisk.mapped import labelled_nodes
    from h3gnn.tables.features import read_vectors

    given_table: Any = pd.read_parquet(path) if path.is_dir() else path
    read = read_vectors(given_table)
    values = np.asarray(read.values, dtype=np.float32)
    if not np.isfinite(values).all():
        row = int(np.argwhere(~np.isfinite(values))[0, 0])
        raise InputError(f"{path} has NaN or infinity in row {row}", code="embedding-not-finite")
    ids = read.ids if read.named else _ids_beside(path, read.ids)
    graph = given if given is None or given.in_memory else labelled_nodes(given)[1]
    if graph is not None and given is not None:
        rows, name = find_ids(graph.node_ids, ids), graph.provenance.source
        missing = np.flatnonzero(rows < 0)
        if missing.size:
            raise InputError(
                f"{path} has no row for node {quoted(graph.node_ids[missing[0]])} of {name} "
                f"({missing.size} of {graph.num_nodes} nodes are missing)",
                code="embedding-rows-missing",
            )
        if len(ids) > given.num_nodes:
            say(f"note: {path} has {len(ids) - given.num_nodes:,} rows for nodes that {name} does not have")
        values, ids = values[rows], graph.node_ids
    digest = hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()
    return Embedded(values, ids, graph, path.name, {"embeddings": str(path), "embeddings_sha256": digest})


def _ids_beside(path: Path, positions: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the ids of `NAME.ids.csv`, which `h3gnn embed` writes for an NPY file; else the positions."""
    from h3gnn.tables.reader import open_table

    beside = path.with_suffix(".ids.csv")
    if not beside.exists():
        return positions
    table = open_table(beside, role="node ids", header=True)
    ids = table.load([0]).unique_ids(0)
    if len(ids) != len(positions):
        message = f"{beside} has {len(ids)} ids, but {path} has {len(positions)} rows"
        raise InputError(message, code="embedding-rows")
    return ids
