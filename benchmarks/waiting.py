"""What people wait for: whole commands and fits, and what other libraries do too, each with its target.

`python -m benchmarks.waiting [--device cpu|cuda] [--parts PART …] [--graph FILE] [--no-reference]` writes its
device's rows of benchmarks/results/waiting.json, or of `--out FILE`; other parts stay as they
are. By default all parts are measured but the last, `fits`, which takes minutes on a CPU. `--only WORD …`
leaves it at those commands and fits whose names contain one of the words; the others' rows stay too.

k-means, silhouette, t-SNE, probe: see `libraries`; the target is to be no slower than the fastest other
library of the same run, which `--no-reference` leaves out.

commands: `fit`, `evaluate` and `report` of the built-in graph of 1,000 nodes, and `compare` of FILE with its
default methods, each from start to end with all its imports: seconds, and seconds of all processors together,
which a machine that does other work too changes less.

large: `report` of the built-in graph enlarged to 50,000 nodes, after a fit of one epoch that is not counted.

fits: whole default fits of Cora, PubMed (random graphs of their shapes where the files are not at hand) and a
random graph of 30,000 nodes; on a GPU after two small fits that load libraries and compile kernels.
"""

from __future__ import annotations

import argparse
import json
import resource
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
from benchmarks.workload import Shape, graph_of, random_graph
from h3gnn.errors import InputError
from h3gnn.estimator import H3GNN
from h3gnn.graphs.datasets import load
from h3gnn.graphs.synthetic import mixed_graph

RESULTS = Path(__file__).parent / "results" / "waiting.json"
LARGE, LARGE_FITTED = 50_000, Shape(30_000, 300_000, 100, 0.1)
FITTED = {"cora": (30.0, 2.0), "pubmed": (240.0, 5.0), f"random, {LARGE_FITTED.nodes:,} nodes": (480.0, 8.0)}
"""Graphs to fit with the defaults, and the seconds that are aimed at on two cores and on an H200."""
TARGETS = {
    "cpu": {"report of 1,000 nodes": 20.0, f"report of {LARGE:,} nodes": 180.0, "compare": 240.0},
    "cuda": {"report of 1,000 nodes": 20.0, f"report of {LARGE:,} nodes": 180.0, "compare": 40.0},
}
"""Seconds that are aimed at, on two cores and on an H200; `compare` is of some 3,000 nodes."""
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


def run_command(name: str, arguments: list[str], folder: str, target: float | None) -> dict[str, Any]:
    """Run a command of the program from start to end."""
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "h3gnn", *arguments], cwd=folder, check=True, capture_output=True)
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    worked = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return aimed(name, seconds, target, **{"processor seconds": worked})


Wanted = Callable[[str], bool]
"""Tells by its name whether a command or a fit is measured."""


def time_commands(device: str, graph: Path | None, wanted: Wanted) -> list[dict[str, Any]]:
    """Return the seconds of whole commands, and those of all processors."""
    asked = {
        "fit of 1,000 nodes": ["fit", "synthetic", "--out", "run", "--device", device],
        "evaluate of 1,000 nodes": ["evaluate", "run", "--device", device],
        "report of 1,000 nodes": ["report", "run", "--device", device],
    }
    if graph is not None:
        asked[f"compare of {graph.stem}"] = ["compare", str(graph.resolve()), "--device", device]
    targets = TARGETS[device]
    with tempfile.TemporaryDirectory() as folder:
        return [
            run_command(name, arguments, folder, targets.get(name, targets.get(name.split()[0])))
            for name, arguments in asked.items()
            if wanted(name)
        ]


def time_large(device: str) -> list[dict[str, Any]]:
    """Return the seconds of a report of many nodes, whose fit is short and not counted."""
    name = f"report of {LARGE:,} nodes"
    with tempfile.TemporaryDirectory() as folder:
        model = H3GNN(epochs=1, device=device, verbose=False).fit(mixed_graph(LARGE))
        model.save(Path(folder) / "run")
        extra = {"columns": model.embedding_.shape[1]}
        del model
        return [
            run_command(name, ["report", "run", "--device", device], folder, TARGETS[device][name]) | extra
        ]


def time_fits(device: str, wanted: Wanted) -> list[dict[str, Any]]:
    """Return the seconds of whole fits with the defaults, and whether each graph is the real one."""
    rows = []
    if device == "cuda":  # libraries are loaded and kernels compiled once, those of long rows too
        for small in (mixed_graph(500), random_graph(Shape(4_000, 320_000, 600, 0.05))):
            H3GNN(device=device, epochs=12, verbose=False).fit(small)
    for name, targets in FITTED.items():
        if not wanted(f"fit of {name}"):
            continue
        graph = random_graph(LARGE_FITTED) if name.startswith("random") else graph_of(name)
        began = time.perf_counter()
        cost = H3GNN(device=device, verbose=False).fit(graph).cost_
        extra = {"real": _is_real(name), "megabytes": cost["peak_megabytes"]}
        target = targets[device == "cuda"]
        rows.append(aimed(f"fit of {name}", time.perf_counter() - began, target, **extra))
    return rows


def _is_real(name: str) -> bool:
    try:
        load(name)
    except InputError:
        return False
    return True


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
        return time_commands(device.type, asked.graph, wanted)
    return time_large(device.type) if part == "large" else time_fits(device.type, wanted)


PARTS = ["k-means", "probe", "silhouette", "t-SNE", "commands", "large", "fits"]
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
    text = f"{row['seconds']:.0f} s" if row["seconds"] >= 10 else f"{row['seconds']:.2f} s"
    if "target" in row:
        text += f" ({'reached' if row['reached'] else 'missed'}: {row['target']:.0f} s)"
    return f"{text}; {row['where']}" if "where" in row else text  # of another machine than the column's


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--graph", type=Path, help="a graph's file to compare methods on")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS[:-1])
    parser.add_argument("--only", nargs="+", metavar="WORD", help="commands and fits of such a name")
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
