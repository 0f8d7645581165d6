"""Puts the stored results into the documents: `python -m benchmarks.tables`.

The text in a document between `<!-- stored: NAME -->` and `<!-- end -->` is made from benchmarks/results
by the function that `PIECES` has under that name; the rest is written by hand. A test compares the two.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from benchmarks import (
    anomalies,
    comparisons,
    databases,
    defaults,
    growth,
    held_out,
    hosts,
    link_counts,
    new_nodes,
    predictions,
    recommendations,
    typed,
    waiting,
)

ROOT = Path(__file__).parent.parent
RESULTS, DOCUMENTS = ROOT / "benchmarks" / "results", ROOT / "docs"
MARKED = re.compile(r"(<!-- stored: (\S+) -->\n\n)(.*?)(\n\n<!-- end -->)", re.DOTALL)

MEASURED = {
    "graph": "graph",
    "channels": "C",
    "precision": "precision",
    "reference_ms": "reference ms",
    "engine_ms": "engine ms",
    "ratio": "times faster",
    "reference_mb": "reference MB",
    "engine_mb": "engine MB",
}
STACKED = {
    "graph": "graph",
    "models": "models",
    "precision": "precision",
    "reference_ms": "reference, one after another ms",
    "one_after_another_ms": "engine, one after another ms",
    "engine_ms": "engine, at once ms",
    "ratio": "times faster than the reference",
    "ratio_to_engine": "times faster than the engine",
}
OPENED = {
    "nodes": "nodes",
    "megabytes": "page, MB",
    "open_ms": "opens in, ms",
    "frame_ms": "frame, ms",
    "frame_worst_ms": "worst frame, ms",
    "draw_ms": "drawing both maps, ms",
}
PAIRED = {"graph": "graph", "seeds": "seeds", "float32": "float32", "bfloat16": "bfloat16"}
POWERS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def stored(name: str) -> Any:
    """Return what a benchmark has left."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def grid(headings: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Return a Markdown table."""
    lines = [list(headings)]
    lines += [["---"] * len(lines[0]), *([str(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def table(rows: list[dict[str, Any]], columns: dict[str, str]) -> str:
    """Return a Markdown table with these columns (name in the results: heading)."""
    return grid(columns.values(), ([row.get(name, "") for name in columns] for row in rows))


def cpu() -> str:
    """Return an epoch of one model on a CPU, with the least time that its operations allow."""
    rows = [row for row in stored("cpu")["rows"] if row["models"] == 1]
    return table(rows, MEASURED | {"floor_ms": "floor ms", "over_floor": "times the floor"})


def profile() -> str:
    """Return where the time of an epoch goes on a CPU, in per cent."""
    runs = stored("profile")["runs"]
    rows = [[kind, *(f"{100 * run['shares'][kind]:.0f}" for run in runs)] for kind in runs[0]["shares"]]
    return grid(["% of the time", *(run["of"] for run in runs)], rows)


def gpu_targets() -> str:
    """Return what is aimed at on a GPU, what was reached, and where the time goes."""
    found = stored("gpu")
    of = {(row["graph"], row["models"]): row for row in found["profile"]}
    kinds = list(found["profile"][0]["shares"])
    rows = []
    for aim in found["targets"]:
        unit = "MB" if aim["what"].endswith("_mb") else "ms a model" if "per" in aim["what"] else "ms"
        where = of[aim["graph"], aim["models"]]
        cells = [f"{aim['measured']:g} {unit}", f"{aim['target']:g} {unit}"]
        cells += ["reached" if aim["reached"] else "missed", where["kernels"], f"{where['kernels_ms']} ms"]
        rows.append([aim["graph"], aim["models"], *cells, *(f"{where['shares'][kind]} %" for kind in kinds)])
    return grid(["graph", "models", "measured", "target", "", "kernels", "their time", *kinds], rows)


def precision(name: str = "precision") -> str:
    """Return what bfloat16 changes, on a GPU or a CPU."""
    found = stored(name)
    rows = [row | {"difference": _apart(row)} for row in found["rows"]]
    return _with_origin(found, table(rows, PAIRED | {"difference": "difference ± standard error"}))


def scale() -> str:
    """Return what growing graphs cost."""
    headings = (
        "edges,nodes,,epoch,on processors,embeddings written,on processors,peak memory,"
        "plain: epoch,plain: peak memory"
    )
    rows = []
    for row in stored("scale")["rows"]:
        plain = row.get("plain", {})
        word = " (computed)" if "computed_epoch_s" in plain else ""
        plain = {name.removeprefix("computed_"): value for name, value in plain.items()}
        rows.append(
            [
                *(f"10{str(len(str(row[one])) - 1).translate(POWERS)}" for one in ("edges", "nodes")),
                "computed" if row.get("computed") else "measured",
                *(_time(row[f"{of}{one}"]) for of in ("epoch", "embed") for one in ("_s", "_processor_s")),
                _gigabytes(row["peak_mb"]),
                _time(plain["epoch_s"]) + word if plain else "–",
                _gigabytes(plain["peak_mb"]) + word if plain else "–",
            ]
        )
    return grid(headings.split(","), rows)


def divided() -> str:
    """Return what each of several processes holds and sends."""
    headings = (
        "processes,own memory,pages of features,sent per step,of it rows,10⁹ edges: own memory,own features"
    )
    rows = []
    for row in stored("divided")["rows"]:
        sent = row["sent_for_training"] + row["sent_for_rows"]
        larger = (row["larger"][name] for name in ("own", "features_held"))
        rows.append(
            [
                row["processes"],
                *(f"{row[name] / 1e6:,.0f} MB" for name in ("own", "features_resident")),
                *(f"{one / 1e6:.1f} MB" for one in (sent, row["sent_for_rows"])),
                *(f"{one / 1e9:.1f} GB" for one in larger),
            ]
        )
    return grid(headings.split(","), rows)


def scale_cuda() -> str:
    """Return an epoch of mini-batches on a GPU, with the graph in the host's memory."""
    row = stored("scale_cuda")
    cells = {
        "nodes": f"{row['nodes']:,}",
        "edges": f"{row['edges']:,}",
        "seeds in a batch": f"{row['batch_size']:,}",
        "epoch": _time(row["epoch_s"]),
        "of it making batches, alone": _time(row["batches_alone_s"]),
        "embeddings written": _time(row["embed_s"]),
        "memory of the device": _gigabytes(row["device_peak_mb"]),
        "of the host": _gigabytes(row["peak_mb"]),
    }
    where = f"{row['device']}, torch {row['machine']['torch']}."
    return f"{grid(cells, [cells.values()])}\n\n{where}"


def scale_commands() -> str:
    """Return what the commands take for a graph in Parquet, from tables to embeddings."""
    found = stored("scale_commands")
    rows = [
        [f"`{name}`", _time(one["seconds"]), _gigabytes(one["own_mb"]), _gigabytes(one["peak_mb"])]
        for name, one in ((name, found[name]) for name in ("prepare", "fit", "embed"))
    ]
    where = (
        f"{found['nodes']:,} nodes, {found['edges']:,} edges, {found['epochs']} epoch; "
        f"{found['machine']['cores']} cores, {found['machine']['memory_gb']} GB, "
        f"torch {found['machine']['torch']}."
    )
    return f"{grid(['', 'time', 'own memory', 'with mapped pages'], rows)}\n\n{where}"


def scale_embedding() -> str:
    """Return the memory of the default preset, and how `similar` searches."""
    found = stored("scale_embedding")
    rows = [
        [
            f"{row['nodes']:,}",
            f"{row['embedding_mb']:,.0f} MB",
            f"{row['fit_kb_per_node']:.0f} kB",
            f"{row['embed_times']:.1f}",
            *(_time(row[name]) for name in ("embed_s", "load_s", "similar_exact_s")),
            *(_time(row[name]) for name in ("similar_approximate_s", "index_s")),
            f"{row['recall_at_10']:.3f}",
        ]
        for row in found["rows"]
    ]
    headings = (
        "nodes,embedding,fit: memory per node,embed: memory / embedding,loaded and embedded,loaded as stored,"
        "`similar` exact,by the index,index built,recall@10"
    )
    one, where = found["rows"][0], found["machine"]
    notes = (
        f"{one['columns']:,} columns, ten links per node; {where['threads']} thread, torch {where['torch']}."
    )
    return f"{grid(headings.split(','), rows)}\n\n{notes}"


def scale_accuracy() -> str:
    """Return how accurate mini-batches are beside the full graph."""
    found, rows = stored("scale_accuracy"), []
    for row in found["rows"]:
        full, batches = row["full graph"], row["mini-batches"]
        size, steps = batches["settings"]["batch_size"], full["settings"]["epochs"]
        both = [f"{mean(one['accuracies']):.1f} ± {stdev(one['accuracies']):.1f}" for one in (full, batches)]
        rows.append([row["graph"], f"{size:,}", steps, row["seeds"], *both, _apart(row)])
    headings = "graph,nodes in a batch,steps,seeds,full graph,mini-batches,difference ± standard error"
    return _with_origin(found, grid(headings.split(","), rows))


def choosing() -> str:
    """Return how several rules that choose the strength of the probe do on hidden validation nodes."""
    rules = {
        "accuracy": "the best accuracy",
        "loss within one error": "the loss as it is",
        "tempered": "`validation`",
        "tempered, dealt anew": "`nested`",
    }
    found = stored("choosing")
    rows = [
        [graph, *(f"{100 * row[one]:.1f}" for one in rules)]
        for graph, row in [*found["rows"].items(), ("mean", found["mean"])]
    ]
    return grid(["graph", *rules.values()], rows)


def sizes() -> str:
    """Return sizes of the default as rows, with their mean over the graphs."""
    runs = stored("sizes")["runs"]
    lines = [
        "| | " + " | ".join(run["graph"] for run in runs) + " | mean |",
        "| --- " * (len(runs) + 2) + "|",
    ]
    for name in defaults.SIZES:
        found = [run["scores"].get(name, {}).get("accuracy") for run in runs]
        known = [one for one in found if one is not None]
        average = f"{sum(known) / len(known):.2f}" if len(known) == len(runs) else "–"
        lines.append(
            f"| {name} | "
            + " | ".join("–" if one is None else f"{one:.1f}" for one in found)
            + f" | {average} |"
        )
    return "\n".join(lines)


PIECES: dict[str, Callable[[], str]] = {
    "precision": precision,
    "precision_cpu": lambda: precision("precision_cpu"),
    "cpu_machine": lambda: "{processor}, {threads} threads, torch {torch}.".format(
        **stored("cpu")["machine"]
    ),
    "cpu": cpu,
    "profile": profile,
    "stack": lambda: table([row for row in stored("cpu")["rows"] if row["models"] > 1], STACKED),
    "growth": lambda: growth.table(stored("growth")),
    "capacity": lambda: growth.plan(stored("growth")),
    "gpu_machine": lambda: "{device}, torch {torch}.".format(**stored("gpu")["machine"]),
    "gpu": lambda: table(
        stored("gpu")["rows"], {"models": "models"} | MEASURED | {"ms_per_model": "ms per model"}
    ),
    "gpu_targets": gpu_targets,
    "waiting": lambda: waiting.table(stored("waiting")),
    "scale": scale,
    "scale_cuda": scale_cuda,
    "scale_commands": scale_commands,
    "scale_embedding": scale_embedding,
    "divided": divided,
    "hosts": lambda: hosts.markdown(stored("hosts")),
    "scale_accuracy": scale_accuracy,
    "page": lambda: table([row | {"nodes": f"{row['nodes']:,}"} for row in stored("page")["rows"]], OPENED),
    "predictions": lambda: predictions.markdown(stored("predictions")),
    "held_out": lambda: held_out.markdown(stored("held_out")),
    "link_counts": lambda: link_counts.table(stored("link_counts")),
    "defaults": lambda: defaults.table(stored("defaults")["runs"], defaults.VARIANTS),
    "sizes": sizes,
    "databases": lambda: databases.markdown(stored("databases")["cells"], "test"),
    "typed": lambda: typed.markdown(stored("typed")),
    "comparisons": lambda: comparisons.table(stored("comparisons")["graphs"]),
    "choosing": choosing,
    "anomalies": lambda: anomalies.markdown(stored("anomalies")["rows"]).strip(),
    "recommendations": lambda: recommendations.markdown(stored("recommendations")),
    "new_nodes": lambda: new_nodes.markdown(stored("new_nodes")["rows"]).strip(),
}


def filled(text: str) -> str:
    """Return a document with the stored results of today at its marks."""
    return MARKED.sub(lambda found: found[1] + PIECES[found[2]]() + found[4], text)


def _with_origin(found: dict[str, Any], figures: str) -> str:
    """Return a table with where it was measured, and the note of the results."""
    where = f"{found['device']}, torch {found['versions']['torch']}."
    return f"{figures}\n\n{' '.join([where, found['note']] if 'note' in found else [where])}"


def _apart(row: dict[str, Any]) -> str:
    return f"{row['difference']:+.2f} ± {row['standard_error']:.2f}"


def _time(seconds: float) -> str:
    if seconds < 1000:
        return f"{seconds:.1f} s" if seconds < 100 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 20_000 else f"{seconds / 3600:.0f} h"


def _gigabytes(mebibytes: float) -> str:
    size = mebibytes * 2**20 / 1e9
    return f"{size:.1f} GB" if size < 100 else f"{size:.0f} GB"


def main() -> None:
    """Write the documents whose results have changed."""
    for path in sorted(DOCUMENTS.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        if filled(text) != text:
            path.write_text(filled(text), encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
