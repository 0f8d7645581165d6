"""Time and memory as a graph grows: `python -m benchmarks.scale [--json] [--table] [--commands]`.

A random graph is written in the files of `h3gnn prepare`. Then, each in a process of its own so that its peak
memory is its own: an epoch of mini-batches of one model with learned edge weights (the preset `single`) and
the writing of all embeddings; and, where it fits, an epoch of full-graph training with the plain
implementation of `benchmarks/reference.py`. `--table` does this for graphs of 10⁵ to 10⁷ edges, and computes
10⁸ and 10⁹ from the largest measured one.

`--commands --nodes N --edges E` begins with Parquet tables of a random graph and runs `h3gnn prepare`, `fit`
and `embed` as a person would, each a process: its seconds, its peak memory, and the peak of what is its own,
without the pages of mapped files, which the system may drop. `--folder` is where all files go.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

FEATURES, CHANNELS, BATCH, FAN_OUT = 128, 128, 1024, (10, 5)
PLAIN_BYTES_PER_NODE = 100_000
"""About what the plain version takes per node; decides whether it is tried on this machine."""
LIBRARIES_MB = 400.0
"""What Python and torch take before the first tensor."""


def write_graph(folder: Path, nodes: int, edges: int, seed: int = 0) -> None:
    """Write a random graph as `h3gnn prepare` would, a block at a time."""
    import torch

    from h3gnn.graphs.buckets import EdgeBuckets
    from h3gnn.graphs.mapped import DESCRIPTION, FORMAT, FORMAT_VERSION
    from h3gnn.graphs.scaling import MomentSums

    random, sums = np.random.default_rng(seed), MomentSums(FEATURES)
    folder.mkdir()
    with (folder / "features.bin").open("wb") as file:
        for start in range(0, nodes, 1 << 16):
            block = random.standard_normal((min(1 << 16, nodes - start), FEATURES), dtype=np.float32)
            sums.add(torch.from_numpy(block))
            file.write(block.tobytes())
    with EdgeBuckets(folder, nodes, weighted=False) as buckets:
        for start in range(0, edges, 1 << 20):
            ends = random.integers(0, nodes, (2, min(1 << 20, edges - start)))
            buckets.add(ends[0], ends[1])
        count = buckets.write_rows()
    about = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "nodes": nodes,
        "edges": count,
        "features": FEATURES,
        "weighted": False,
        "ids": "position",
        "source": f"random, seed {seed}",
        "sha256": "0" * 64,
        "mended": [],
        "moments": asdict(sums.moments()),
    }
    (folder / DESCRIPTION).write_text(json.dumps(about))


def run_batches(folder: Path, epochs: int, embeddings: bool) -> dict[str, float]:
    """Train in mini-batches and write all embeddings; return times and this process's peak memory."""
    import torch

    from h3gnn.cli.output import write_result
    from h3gnn.estimator import H3GNN
    from h3gnn.graphs.mapped import open_mapped

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    graph: Any = open_mapped(folder)
    model = H3GNN.from_preset(
        "single", channels=CHANNELS, batch_size=BATCH, fan_out=FAN_OUT, device="cpu", lr_warmup=0, epochs=0
    )
    start = time.perf_counter()
    model.fit(graph)  # builds the support beside the graph, which is done once
    prepared = time.perf_counter() - start
    model.epochs = epochs
    start, busy = time.perf_counter(), time.process_time()
    model.fit(graph)
    trained, trained_busy = time.perf_counter() - start, time.process_time() - busy
    start, busy = time.perf_counter(), time.process_time()
    if embeddings:
        write_result(folder / "embeddings.parquet", model, graph)
    written, written_busy = time.perf_counter() - start, time.process_time() - busy
    return {
        "support_s": prepared,
        "epoch_s": trained / epochs,
        "epoch_processor_s": trained_busy / epochs,
        "embed_s": written,
        "embed_processor_s": written_busy,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def run_plain(folder: Path) -> dict[str, float]:
    """Train one full-graph epoch as it would be written with PyG in an hour."""
    import torch

    from benchmarks.reference import ReferenceEncoder, ReferenceTrainer, random_mask
    from h3gnn.encoder import build_support
    from h3gnn.graphs.mapped import open_mapped

    graph = open_mapped(folder)
    targets = np.repeat(np.arange(graph.num_nodes), np.diff(graph.rows.crow))
    edge_index = torch.from_numpy(np.stack([graph.rows.cols.astype(np.int64), targets]))
    support = build_support(edge_index, graph.num_nodes, self_loops=False)
    both = torch.stack([support.pattern.cols, support.pattern.rows])
    encoder = ReferenceEncoder(FEATURES, CHANNELS, both, support.start, norm="post")
    trainer = ReferenceTrainer(
        encoder, torch.from_numpy(np.array(graph.features)), learning_rate=0.001, momentum=0.9
    )
    start = time.perf_counter()
    trainer.step(random_mask(graph.num_nodes, 0.7))
    spent = time.perf_counter() - start
    return {"epoch_s": spent, "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def in_child(mode: str, folder: Path, epochs: int = 1, *, embeddings: bool = True) -> dict[str, Any]:
    """Measure in a process of its own; a process that runs out of memory leaves no figures."""
    command = [sys.executable, "-m", "benchmarks.scale", "--child", mode, "--folder", str(folder)]
    command += ["--epochs", str(epochs), *([] if embeddings else ["--no-embeddings"])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["killed"])[-1]}
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


def write_tables(folder: Path, nodes: int, edges: int, seed: int = 0) -> None:
    """Write a random graph as `edges.parquet` and `features.parquet`, a block at a time; ids are numbers."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    random = np.random.default_rng(seed)
    names = [f"f{column}" for column in range(FEATURES)]
    kinds = pa.schema([("id", pa.int64()), *((name, pa.float32()) for name in names)])
    with pq.ParquetWriter(folder / "features.parquet", kinds) as file:
        for start in range(0, nodes, 1 << 16):
            ids = np.arange(start, min(start + (1 << 16), nodes))
            rows = random.standard_normal((FEATURES, len(ids)), dtype=np.float32)
            file.write_table(pa.table([ids, *rows], schema=kinds))
    kinds = pa.schema([("source", pa.int64()), ("target", pa.int64())])
    with pq.ParquetWriter(folder / "edges.parquet", kinds) as file:
        for start in range(0, edges, 1 << 20):
            ends = random.integers(0, nodes, (2, min(1 << 20, edges - start)))
            file.write_table(pa.table([*ends], schema=kinds))


def run_commands(folder: Path, nodes: int, edges: int, epochs: int) -> dict[str, Any]:
    """Prepare, fit and embed a graph in Parquet by the commands; return seconds and memory of each."""
    write_tables(folder, nodes, edges)
    how = ["--preset", "single", "--channels", CHANNELS, "--batch-size", BATCH, "--epochs", epochs]
    how += ["--fan-out", ",".join(map(str, FAN_OUT)), "--device", "cpu", "--set", "lr_warmup=0"]
    tables = ["--edges", folder / "edges.parquet", "--features", folder / "features.parquet"]
    commands = {
        "prepare": [*tables, "--out", folder / "graph"],
        "fit": [folder / "graph", "--out", folder / "run", *how],
        "embed": [folder / "run", "--out", folder / "embeddings.parquet", "--device", "cpu"],
    }
    result: dict[str, Any] = {"nodes": nodes, "edges": edges, "epochs": epochs}
    for name, given in commands.items():
        result[name] = watched([sys.executable, "-m", "h3gnn", name, *map(str, given)], folder)
        print(json.dumps({name: result[name]}), file=sys.stderr, flush=True)
        if "error" in result[name]:
            break
    return result


def watched(command: list[str], temporary: Path) -> dict[str, Any]:
    """Run a command, and look at its memory twice a second; its temporary files go into a folder."""
    start, own, error = time.perf_counter(), 0, temporary / "stderr.txt"
    with error.open("w") as told:
        surroundings = {**os.environ, "TMPDIR": str(temporary)}
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=told, env=surroundings)
        ended = 0
        while not ended:
            own = max(own, _own_kilobytes(process.pid))
            time.sleep(0.5)
            ended, status, used = os.wait4(process.pid, os.WNOHANG)
        process.returncode = os.waitstatus_to_exitcode(status)
    figures = {"seconds": round(time.perf_counter() - start, 1), "own_mb": round(own / 1024)}
    if process.returncode:
        return {**figures, "error": (error.read_text().strip().splitlines() or ["killed"])[-1]}
    return {**figures, "peak_mb": round(used.ru_maxrss / 1024)}


def _own_kilobytes(process: int) -> int:
    """Return the resident memory of a process without the pages of files."""
    try:
        lines = Path(f"/proc/{process}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "RssShmem")))


def measure(nodes: int, edges: int, *, plain: bool = True, epochs: int = 1) -> dict[str, Any]:
    """Return the figures of one size, with the plain version's where it fits into this machine."""
    with tempfile.TemporaryDirectory(prefix="h3gnn-scale-") as name:
        folder = Path(name) / "graph"
        write_graph(folder, nodes, edges)
        result = {"nodes": nodes, "edges": edges, **in_child("batches", folder, epochs)}
        if plain:
            result["plain"] = plain_figures(folder, nodes, edges)
    return result


def plain_figures(folder: Path, nodes: int, edges: int) -> dict[str, Any]:
    """Measure the plain version, or compute its figures from a smaller graph where it does not fit."""
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    share = 1
    while nodes // share * PLAIN_BYTES_PER_NODE > 0.8 * available:
        share *= 10
    if share == 1:
        return in_child("plain", folder)
    smaller = folder.parent / "smaller"
    write_graph(smaller, nodes // share, edges // share)
    return scaled_plain(in_child("plain", smaller), share, nodes // share)


def scaled_plain(measured: dict[str, Any], share: int, nodes: int) -> dict[str, Any]:
    """Return figures for a graph `share` times as large, in proportion."""
    if "error" in measured:
        return measured
    return {
        "computed_from_nodes": nodes,
        "computed_epoch_s": share * measured["epoch_s"],
        "computed_peak_mb": LIBRARIES_MB + share * (measured["peak_mb"] - LIBRARIES_MB),
    }


def table(largest: int) -> list[dict[str, Any]]:
    """Measure 10⁵, 10⁶, … edges, ten per node, and compute two sizes more from the largest."""
    rows: list[dict[str, Any]] = []
    for edges in (10**7, 10**6, 10**5):
        if edges <= largest:
            rows.insert(0, measure(edges // 10, edges))
            print(json.dumps(rows[0]), file=sys.stderr, flush=True)
    return rows + computed(rows)


def computed(measured: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return 10⁸ and 10⁹ edges from measured rows: time in proportion, memory on the line of the last two."""
    before, last = measured[-2:] if len(measured) > 1 else (measured[0], measured[0])
    rise = (last["peak_mb"] - before["peak_mb"]) / max(1, last["edges"] - before["edges"])
    rows = []
    for edges in (10**8, 10**9):
        times = {key: last[key] * edges / last["edges"] for key in last if key.endswith("_s")}
        rows.append(
            {
                "computed": True,
                "nodes": edges // 10,
                "edges": edges,
                **times,
                "peak_mb": last["peak_mb"] + rise * (edges - last["edges"]),
            }
        )
    return rows


def machine() -> dict[str, Any]:
    """Say where figures were taken."""
    import torch

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return {
        "cores": os.cpu_count(),
        "threads": os.environ.get("OMP_NUM_THREADS", "2"),
        "memory_gb": round(memory, 1),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "settings": {"features": FEATURES, "channels": CHANNELS, "batch_size": BATCH, "fan_out": FAN_OUT},
    }


def main() -> None:
    """Read the arguments and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--edges", type=int, default=10_000_000)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--largest", type=int, default=10**7)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--commands", action="store_true", help="prepare, fit and embed, from Parquet")
    parser.add_argument("--child", choices=("batches", "plain"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help="with --commands: where files go, and are removed")
    parser.add_argument("--no-embeddings", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child == "batches":
        print(json.dumps(run_batches(given.folder, given.epochs, not given.no_embeddings)))
        return
    if given.child == "plain":
        print(json.dumps(run_plain(given.folder)))
        return
    if given.commands:
        with tempfile.TemporaryDirectory(prefix="h3gnn-scale-", dir=given.folder) as name:
            found = run_commands(Path(name), given.nodes, given.edges, given.epochs)
        print(json.dumps({"machine": machine(), **found}, indent=2))
        return
    rows = table(given.largest) if given.table else [measure(given.nodes, given.edges, epochs=given.epochs)]
    result: dict[str, Any] = {"machine": machine()} | ({"rows": rows} if given.table else rows[0])
    if given.json:
        print(json.dumps(result, indent=2))
        return
    for row in rows:
        print("computed" if row.get("computed") else "measured", json.dumps(row))


if __name__ == "__main__":
    main()
