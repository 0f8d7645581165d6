"""What people wait for: whole commands and fits, and what other libraries do too, each with its target.

`python -m benchmarks.waiting [--device cpu|cuda] [--parts PART …] [--graph FILE] [--no-reference]` writes its
device's rows of benchmarks/results/waiting.json, or of `--out FILE`; other parts stay as they
are. By default all parts are measured but the last, `compare`, which takes minutes. `--only WORD …`
measures the commands whose names contain one of the words; the others' rows stay too.

k-means, silhouette, t-SNE, probe: see `libraries`; the target is to be no slower than the fastest other
library of the same run, which `--no-reference` leaves out.

commands: what a user types, each from start to end with all its imports: `demo`, `fit` of Cora and PubMed
(with `quick`, too), `fit`, `evaluate` and `report` of the built-in graph of 1,000 nodes, `predict` of tables
of 1,000 accounts, and the import of `H3GNN` beside that of torch and scikit-learn: the median of three runs,
with the processor seconds, which other programs change less. On a GPU the first `fit` compiles kernels.
Then, once, a default fit of a random graph of 30,000 nodes.

large: `report` of the built-in graph enlarged to 50,000 nodes, after a fit of one epoch that is not counted.

compare: `compare` of Cora and of FILE with its default methods, with the seconds of each method.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks import libraries
from benchmarks.cpu import machine
from benchmarks.workload import Shape, random_graph
from h3gnn.estimator import H3GNN
from h3gnn.graphs.synthetic import mixed_graph

RESULTS = Path(__file__).parent / "results" / "waiting.json"
LARGE, LARGE_FITTED, RUNS = 50_000, Shape(30_000, 300_000, 100, 0.1), 3
LARGE_FIT = f"fit of random, {LARGE_FITTED.nodes:,} nodes"
TARGETS: dict[str, dict[str, float]] = {
    "cpu": {
        "demo": 12,
        "fit of cora": 15,
        "fit of cora, quick": 6,
        "fit of pubmed": 75,
        "fit of pubmed, quick": 25,
        "predict of tables of 1,000 nodes": 15,
        "evaluate of 1,000 nodes": 5,
        "report of 1,000 nodes": 12,
        f"report of {LARGE:,} nodes": 90,
        "compare of acm": 240,
        "compare of cora": 120,
    },
    "cuda": {"fit of cora, first": 12, "fit of cora": 6, "compare of acm": 25},
}
"""Seconds that are aimed at, on two cores and on an H200."""
IMPORTS = {
    "ours": "from h3gnn import H3GNN",
    "torch and scikit-learn": "import torch, sklearn.base, sklearn.utils.validation",
}
IMPORT_TARGET = 1.1
"""The import of H3GNN should take at most this multiple of the other."""
PROBE_TARGETS, PROBED = {"cpu": 25.0, "cuda": 1.0}, 2048
"""Seconds of the probe of 3,000 nodes with this many columns, all splits and strengths."""
COLUMNS = {"cpu": "CPU", "cuda": "GPU"}


def aimed(name: str, seconds: float, target: float | None, **more: Any) -> dict[str, Any]:
    """Return a row: how long it takes, and where there is a target whether it is reached."""
    row = {"what": name, "seconds": seconds, **more}
    return row if target is None else {**row, "target": target, "reached": seconds <= target}


def beside(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add to each row the fastest other library's seconds as the target, where one was measured."""
    for row in rows:
        others = [one["seconds"] for name, one in row.items() if isinstance(one, dict) and name != "ours"]
        if others:
            row |= {"target": min(others), "reached": row["ours"]["seconds"] <= min(others)}
    return rows


def run_process(arguments: list[str], folder: str) -> tuple[float, float]:
    """Run Python with these arguments; return seconds, and those of all processors."""
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], cwd=folder, check=True, capture_output=True)
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def run_command(name: str, arguments: list[str], folder: str, target: float | None) -> dict[str, Any]:
    """Run a command of the program from start to end."""
    seconds, worked = run_process(["-m", "h3gnn", *arguments], folder)
    return aimed(name, seconds, target, **{"processor seconds": worked})


Wanted = Callable[[str], bool]
"""Tells by its name whether a command is measured."""


def time_commands(device: str, wanted: Wanted) -> list[dict[str, Any]]:
    """Return the seconds of whole commands, and those of all processors."""
    on, tables = ["--device", device], ["--edges", "t/transactions.csv", "--features", "t/accounts.csv"]
    cora = ["fit", "cora", "--out", "cora", *on]
    asked = {
        "demo": ["demo", *on],
        "fit of cora": cora,
        "fit of cora, quick": [*cora, "--preset", "quick"],
        "fit of pubmed": ["fit", "pubmed", "--out", "pubmed", *on],
        "fit of pubmed, quick": ["fit", "pubmed", "--out", "pubmed", *on, "--preset", "quick"],
        "predict of tables of 1,000 nodes": ["predict", "made", *tables, "--out", "p.csv", *on],
        "fit of 1,000 nodes": ["fit", "synthetic", "--out", "run", *on],
        "evaluate of 1,000 nodes": ["evaluate", "run", *on],
        "report of 1,000 nodes": ["report", "run", *on],
    }
    asked = {name: arguments for name, arguments in asked.items() if wanted(name)}
    targets, rows = TARGETS[device], []
    with tempfile.TemporaryDirectory() as folder:
        make = str(Path(__file__).parents[1] / "examples" / "make_fraud.py")
        run_process([make, "--accounts", "1000", "--out", "t"], folder)
        if device == "cuda" and "fit of cora" in asked:
            rows.append(run_command("fit of cora, first", cora, folder, targets["fit of cora, first"]))
        if "evaluate of 1,000 nodes" in asked or "report of 1,000 nodes" in asked:
            run_process(["-m", "h3gnn", "fit", "synthetic", "--out", "run", *on], folder)
        for name, arguments in asked.items():
            again = []
            for _ in range(RUNS):
                for made in ("cora", "pubmed", "made", *(["run"] if arguments[0] == "fit" else [])):
                    shutil.rmtree(Path(folder) / made, ignore_errors=True)
                again.append(run_command(name, arguments, folder, targets.get(name)))
            rows.append(sorted(again, key=lambda row: row["seconds"])[RUNS // 2])
    if wanted("import"):
        rows.append(time_imports())
    if wanted(LARGE_FIT):
        rows.append(time_fit(device))
    return rows


def time_imports() -> dict[str, Any]:
    """Return the processor seconds of importing H3GNN beside torch and scikit-learn, in turns."""
    each: dict[str, list[float]] = {name: [] for name in IMPORTS}
    for _ in range(2 * RUNS + 1):
        for name, line in IMPORTS.items():
            each[name].append(run_process(["-c", line], ".")[1])
    ours, others = (sorted(seconds)[RUNS] for seconds in each.values())
    row = aimed("import of H3GNN", ours, round(IMPORT_TARGET * others, 2))
    return row | {"torch and scikit-learn": others}


def time_fit(device: str) -> dict[str, Any]:
    """Return the seconds of a default fit of a random graph."""
    graph = random_graph(LARGE_FITTED)
    began = time.perf_counter()
    cost = H3GNN(device=device, verbose=False).fit(graph).cost_
    return aimed(LARGE_FIT, time.perf_counter() - began, None, megabytes=cost["peak_megabytes"])


def time_comparisons(device: str, graph: Path | None, wanted: Wanted) -> list[dict[str, Any]]:
    """Return the seconds of `compare` of Cora and of a file, and those of each method."""
    asked = {"compare of cora": "cora"}
    if graph is not None:
        asked[f"compare of {graph.stem}"] = str(graph.resolve())
    rows = []
    for name, what in asked.items():
        if wanted(name):
            with tempfile.TemporaryDirectory() as folder:
                command = ["compare", what, "--device", device, "--out", "record.json"]
                row = run_command(name, command, folder, TARGETS[device].get(name))
                stored = json.loads((Path(folder) / "record.json").read_text())
            each = {name: one["result"]["seconds"] for name, one in stored["methods"].items()}
            rows.append(row | {"methods": each})
    return rows


def time_large(device: str) -> list[dict[str, Any]]:
    """Return the seconds of a report of many nodes, whose fit is short and not counted."""
    name = f"report of {LARGE:,} nodes"
    with tempfile.TemporaryDirectory() as folder:
        model = H3GNN(epochs=1, device=device, verbose=False).fit(mixed_graph(LARGE))
        model.save(Path(folder) / "run")
        extra = {"columns": model.embedding_.shape[1]}
        del model
        return [
            run_command(name, ["report", "run", "--device", device], folder, TARGETS[device].get(name))
            | extra
        ]


def measure(part: str, device: torch.device, asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the rows of one part."""
    others = not asked.no_reference

    def wanted(name: str) -> bool:
        return not asked.only or any(word in name for word in asked.only)

    if part == "k-means":
        return beside([libraries.compare_kmeans(*one, device, others) for one in libraries.CLUSTERED])
    if part == "silhouette":
        return beside([libraries.compare_silhouettes(*one, others) for one in libraries.MEASURED])
    if part == "t-SNE":
        return beside([libraries.compare_places(*one, others) for one in libraries.PLACED])
    if part == "probe":
        rows = beside([libraries.compare_probe(*one, device, others) for one in libraries.PROBED])
        for row in (row for row in rows if row["columns"] == PROBED):
            target = PROBE_TARGETS[device.type]
            row |= {"target": target, "reached": row["ours"]["seconds"] <= target}
        return rows
    if part == "commands":
        return time_commands(device.type, wanted)
    return time_large(device.type) if part == "large" else time_comparisons(device.type, asked.graph, wanted)


PARTS = ["k-means", "probe", "silhouette", "t-SNE", "commands", "large", "compare"]
COMPARED, TIMED = PARTS[:4], PARTS[4:]


def table(stored: dict[str, Any]) -> str:
    """Return what is stored as Markdown, CPU and GPU side by side; a dash where nothing is."""
    found: dict[str, dict[str, str]] = {}
    for device in (one for one in COLUMNS if one in stored):
        for part in COMPARED:
            for row in stored[device].get(part, []):
                found.setdefault(_called(part, row), {})[device] = _beside_words(row)
        for part in TIMED:
            for row in stored[device].get(part, []):
                found.setdefault(row["what"], {})[device] = _words(row)
    devices = [one for one in COLUMNS if any(one in row for row in found.values())]
    heads = [
        "",
        *(f"{COLUMNS[one]}: {stored[one]['device']}, torch {stored[one]['torch']}" for one in devices),
    ]
    lines = [heads, ["---"] * len(heads)]
    lines += [[name, *(row.get(one, "–") for one in devices)] for name, row in found.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _called(part: str, row: dict[str, Any]) -> str:
    return f"{part}, {row['nodes']:,} × {row['columns']:,}"


def _beside_words(row: dict[str, Any]) -> str:
    timed = {name: one["seconds"] for name, one in row.items() if isinstance(one, dict)}
    first = _seconds(timed.pop("ours"))
    if row["columns"] == PROBED and "splits" in row:
        first += f" ({'reached' if row['reached'] else 'missed'}: {row['target']:.0f} s)"
    return "; ".join([first, *(f"{name} {_seconds(seconds)}" for name, seconds in timed.items())])


def _seconds(taken: float) -> str:
    return f"{taken:.0f} s" if taken >= 10 else f"{taken:.2g} s"


def _words(row: dict[str, Any]) -> str:
    """Return a cell: seconds, the target, and of `compare` the slowest methods."""
    text = f"{row['seconds']:.0f} s" if row["seconds"] >= 10 else f"{row['seconds']:.2f} s"
    if "target" in row:
        text += f" ({'reached' if row['reached'] else 'missed'}: {row['target']:.3g} s)"
    slowest = sorted(row.get("methods", {}).items(), key=lambda one: -one[1])[:5]
    return "; ".join([text, *(f"{name} {_seconds(seconds)}" for name, seconds in slowest)])


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--graph", type=Path, help="a graph's file to compare methods on")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS[:-1])
    parser.add_argument("--only", nargs="+", metavar="WORD", help="commands of such a name")
    parser.add_argument("--no-reference", action="store_true", help="leave out other libraries")
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    device = torch.device(asked.device)
    name = f"{machine()['processor']}, {torch.get_num_threads()} threads"
    name = torch.cuda.get_device_name() if device.type == "cuda" else name
    here: dict[str, Any] = {"device": name, "torch": torch.__version__}
    for part in asked.parts:
        here[part] = measure(part, device, asked)
        stored = json.loads(asked.out.read_text()) if asked.out.exists() else {}
        before = stored.get(device.type, {})
        if asked.only and part in TIMED:
            again = {row["what"] for row in here[part]}
            here[part] = [row for row in before.get(part, []) if row["what"] not in again] + here[part]
        stored[device.type] = {**before, **here}
        asked.out.write_text(json.dumps(stored, indent=1) + "\n")  # each part as soon as it is there
    print(json.dumps(here, indent=1))


if __name__ == "__main__":
    main()
