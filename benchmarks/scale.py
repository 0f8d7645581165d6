"""Time and memory as a graph grows: `python -m benchmarks.scale [--table] [--commands] [--device cuda]`.

A random graph is written in the files of `h3gnn prepare`. Then, each in a separate process so that its peak
memory is its own: an epoch of mini-batches of one model (the preset `single` with fixed edge weights) and
the writing of all embeddings; and, where it fits, an epoch of full-graph training with the plain
implementation of `benchmarks/reference.py`. `--table` does this for graphs of 10⁵ to 10⁷ edges, and computes
10⁸ and 10⁹ from the largest measured one, and the plain version's figures from the largest that it fits.

`--device cuda` trains three epochs on a GPU, with features in the host's memory and batches of
`CUDA_BATCH` seeds (`--batch-size` gives another size, on either device), and tells the seconds of each epoch,
of making all batches of one alone, of the writing of embeddings, and the operations that take longest.

`--embedding` measures the default preset on graphs in memory of 10,000, 40,000 and 400,000 nodes (with up to
`--largest` links, ten for each node), each step in a process: the peak memory of a fit of `--epochs` epochs,
per node, without imports and graph; that of embedding and writing Parquet, as a multiple of the embedding,
without imports; the seconds of both searches of `similar` for one node, and the recall.

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
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

FEATURES, CHANNELS, BATCH, FAN_OUT = 128, 128, 1024, (10, 5)
CUDA_BATCH, CUDA_EPOCHS, LONGEST = 16_384, 3, 12
DEFAULTS = ("default-fit", "default-embed", "default-search")
QUERIES = 100
PLAIN_BYTES_PER_NODE = 100_000
"""About what the plain version takes per node; decides whether it is tried on this machine."""
LIBRARIES_MB = 400.0
"""What Python and torch take before the first tensor."""


def write_graph(folder: Path, nodes: int, edges: int, seed: int = 0) -> None:
    """Write a random graph as `h3gnn prepare` would, a block at a time."""
    import torch

    from h3gnn.graphs.scaling import MomentSums
    from h3gnn.ondisk.engine import sort_edges
    from h3gnn.ondisk.mapped import DESCRIPTION, FORMAT, FORMAT_VERSION

    random, sums = np.random.default_rng(seed), MomentSums(FEATURES)
    folder.mkdir()
    with (folder / "features.bin").open("wb") as file:
        for start in range(0, nodes, 1 << 16):
            block = random.standard_normal((min(1 << 16, nodes - start), FEATURES), dtype=np.float32)
            sums.add(torch.from_numpy(block))
            file.write(block.tobytes())
    starts = range(0, edges, 1 << 20)
    ends = (random.integers(0, nodes, (2, min(1 << 20, edges - start))) for start in starts)
    count = sort_edges(((target, source, None) for source, target in ends), folder, nodes, weighted=False)
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
        "kind": "generated",
        "structural": False,
        "repairs": [],
        "moments": asdict(sums.moments()),
    }
    (folder / DESCRIPTION).write_text(json.dumps(about))


def model_of(device: str, batch_size: int) -> Any:
    """Return what all figures are of, not yet trained."""
    from h3gnn.estimator import H3GNN

    return H3GNN.from_preset(
        "single",
        edge_weights="fixed",
        channels=CHANNELS,
        batch_size=batch_size,
        num_neighbors=FAN_OUT,
        device=device,
        warmup_epochs=0,
        epochs=0,
    )


def run_batches(folder: Path, epochs: int, batch_size: int) -> dict[str, float]:
    """Train in mini-batches and write all embeddings; return times and this process's peak memory."""
    import torch

    from h3gnn.cli.output import write_result
    from h3gnn.ondisk.mapped import open_mapped
    from h3gnn.resources import retain_heap

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    graph: Any = open_mapped(folder)
    model = model_of("cpu", batch_size)
    start = time.perf_counter()
    model.fit(graph)  # builds the support beside the graph, which is done once
    prepared = time.perf_counter() - start
    model.epochs = epochs
    start, busy = time.perf_counter(), time.process_time()
    model.fit(graph)
    trained, trained_busy = time.perf_counter() - start, time.process_time() - busy
    start, busy = time.perf_counter(), time.process_time()
    retain_heap()  # as every command
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


def run_device(folder: Path, device: str, batch_size: int) -> dict[str, Any]:
    """Train on a device with features in the host's memory; return seconds, and what takes longest."""
    import torch

    from h3gnn.cli.output import write_result
    from h3gnn.ondisk.mapped import open_mapped
    from h3gnn.preprocessing import Preprocessing
    from h3gnn.training.distributed import Ranks
    from h3gnn.training.resources import peak_megabytes

    place = torch.device(device)
    graph: Any = open_mapped(folder)
    model = model_of(device, batch_size)
    model.fit(graph)  # builds the support beside the graph, which is done once
    model.epochs, ends = CUDA_EPOCHS, []

    def note(*_: object) -> None:
        if place.type == "cuda":
            torch.cuda.synchronize(place)
        ends.append(time.perf_counter())

    start = time.perf_counter()
    model.fit(graph, after_epoch_of=lambda _: note)
    note()
    spent = np.diff([start, *ends]).tolist()
    settings = model.get_settings()
    source, start = Preprocessing.of(settings).fit(graph).source(settings, place), time.perf_counter()
    made = sum(1 for _ in source.epoch(torch.Generator().manual_seed(0), Ranks()))
    note()
    sampled, start = ends[-1] - start, time.perf_counter()
    write_result(folder / "embeddings.parquet", model, graph)
    written = time.perf_counter() - start
    return {
        "device": torch.cuda.get_device_name(place) if place.type == "cuda" else device,
        "batch_size": batch_size,
        "batches": made,
        "epoch_s": min(spent[1:-1]),
        "first_epoch_and_start_s": spent[0],
        "end_s": spent[-1],
        "batches_alone_s": sampled,
        "embed_s": written,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "device_peak_mb": peak_megabytes(place),
        "longest": longest_operations(model, graph, place),
    }


def longest_operations(model: Any, graph: Any, place: Any) -> list[str]:
    """Train one epoch more under torch's profiler; return its longest operations, of device and host."""
    from torch.profiler import ProfilerActivity, profile

    kinds, orders = [ProfilerActivity.CPU], ["self_cpu_time_total"]
    if place.type == "cuda":
        kinds, orders = [*kinds, ProfilerActivity.CUDA], ["self_cuda_time_total", *orders]
    model.epochs = 1
    with profile(activities=kinds) as seen:
        model.fit(graph)
    found = seen.key_averages()
    tables = [found.table(sort_by=order, row_limit=LONGEST, max_name_column_width=60) for order in orders]
    for one in tables:
        print(one, file=sys.stderr, flush=True)
    return [line for one in tables for line in one.splitlines()]


def run_plain(folder: Path) -> dict[str, float]:
    """Train one full-graph epoch as it would be written with PyG in an hour."""
    import torch

    from benchmarks.reference import ReferenceEncoder, ReferenceTrainer, random_mask
    from h3gnn.encoder import build_support
    from h3gnn.ondisk.mapped import open_mapped

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


def in_child(
    mode: str, folder: Path, epochs: int = 1, batch_size: int = BATCH, nodes: int = 0
) -> dict[str, Any]:
    """Measure in a separate process; a process that runs out of memory leaves no figures."""
    command = [sys.executable, "-m", "benchmarks.scale", "--child", mode, "--folder", str(folder)]
    command += ["--epochs", str(epochs), "--batch-size", str(batch_size), "--nodes", str(nodes)]
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
    how += ["--fan-out", ",".join(map(str, FAN_OUT)), "--device", "cpu", "--set", "warmup_epochs=0"]
    how += ["--set", "edge_weights=fixed"]
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
    """Run a command, and sample its memory twice a second; its temporary files go into a folder."""
    start, own, error = time.perf_counter(), 0, temporary / "stderr.txt"
    with error.open("w") as errors:
        surroundings = {**os.environ, "TMPDIR": str(temporary)}
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, env=surroundings)
        ended = 0
        while not ended:
            own = max(own, _own_kilobytes(process.pid))
            time.sleep(0.1)
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


class Watch:
    """Samples the peak of this process's own memory, without the pages of files, fifty times a second."""

    def __init__(self) -> None:
        self.start, self.peak, self.ended = _own_kilobytes(os.getpid()), 0, threading.Event()
        self.thread = threading.Thread(target=self._sample, daemon=True)
        self.thread.start()

    def _sample(self) -> None:
        while not self.ended.wait(0.02):
            self.peak = max(self.peak, _own_kilobytes(os.getpid()))

    def kilobytes(self) -> int:
        """End, and return the peak above the start."""
        self.ended.set()
        self.thread.join()
        return max(self.peak, _own_kilobytes(os.getpid())) - self.start


def random_graph(nodes: int) -> Any:
    """Return a graph in memory with ten links for each node."""
    from h3gnn.graphs.convert import as_graph

    random = np.random.default_rng(0)
    features = random.standard_normal((nodes, FEATURES), dtype=np.float32)
    return as_graph(features, random.integers(0, nodes, (2, 10 * nodes)))


def run_default_fit(folder: Path, nodes: int, epochs: int) -> dict[str, Any]:
    """Fit the default preset and save it without its embedding."""
    import scipy.stats  # noqa: F401  (imported by the fit)

    from h3gnn.estimator import H3GNN
    from h3gnn.resources import retain_heap

    retain_heap()  # as every command
    graph = random_graph(nodes)
    watch, start = Watch(), time.perf_counter()
    model = H3GNN(epochs=epochs, device="cpu").fit(graph)
    seconds, own = time.perf_counter() - start, watch.kilobytes()
    model.save(folder / "run", embedding="later")
    return {"columns": model.embedding_.shape[1], "fit_s": seconds, "fit_kb_per_node": own * 1.024 / nodes}


def run_default_embed(folder: Path) -> dict[str, Any]:
    """Load the run, which embeds, and write Parquet."""
    from h3gnn.cli.output import write_rows
    from h3gnn.estimator import H3GNN
    from h3gnn.resources import retain_heap

    retain_heap()
    watch, start = Watch(), time.perf_counter()
    model = H3GNN.load(folder / "run")
    embedded = time.perf_counter() - start
    write_rows(folder / "e.parquet", model.embedding_, model.graph_.node_ids)
    own, size = watch.kilobytes(), model.embedding_.nbytes
    model.store_embedding(folder / "run")
    return {"embed_s": embedded, "embed_times": own * 1024 / size, "embedding_mb": size / 1e6}


def run_default_search(folder: Path) -> dict[str, Any]:
    """Search in the stored embedding, and compare both searches for some nodes."""
    from h3gnn.answers.similarity import CANDIDATES, NeighbourIndex, mean_row, nearest, nearest_among
    from h3gnn.estimator import H3GNN

    start = time.perf_counter()
    model = H3GNN.load(folder / "run")
    times = {"load_s": time.perf_counter() - start}
    start = time.perf_counter()
    index = model.inference_.index = NeighbourIndex.build(model.embedding_)
    times["index_s"] = time.perf_counter() - start
    for search in ("exact", "approximate"):
        start = time.perf_counter()
        model.similar(0, 10, search=search)
        times[f"similar_{search}_s"] = time.perf_counter() - start
    rows, mean = model.embedding_, mean_row(model.embedding_)
    queries = np.linspace(0, len(rows) - 1, QUERIES).astype(np.int64)
    exact, _ = nearest(rows, queries, 10, mean=mean)
    found, _ = nearest_among(rows, queries, 10, index.candidates(rows[queries], CANDIDATES), mean)
    recall = np.mean([np.isin(one, other).mean() for one, other in zip(exact, found, strict=True)])
    return {
        **times,
        "queries": QUERIES,
        "recall_at_10": float(recall),
        "index_mb": len(index.to_bytes()) / 1e6,
    }


def embedding_rows(largest: int, epochs: int, where: Path | None) -> list[dict[str, Any]]:
    """Measure graphs in memory up to a number of links, each step in a process of its own."""
    rows = []
    for nodes in (10_000, 40_000, 400_000):
        if 10 * nodes <= largest:
            with tempfile.TemporaryDirectory(prefix="h3gnn-scale-", dir=where) as name:
                row: dict[str, Any] = {"nodes": nodes, "edges": 10 * nodes, "epochs": epochs}
                for mode in ("default-fit", "default-embed", "default-search"):
                    row |= in_child(mode, Path(name), epochs, nodes=nodes)
            rows.append(row)
            print(json.dumps(row), file=sys.stderr, flush=True)
    return rows


def measure(nodes: int, edges: int, *, epochs: int = 1, batch_size: int = BATCH) -> dict[str, Any]:
    """Return the figures of one size, with the plain version's where it fits into this machine."""
    with tempfile.TemporaryDirectory(prefix="h3gnn-scale-") as name:
        folder = Path(name) / "graph"
        write_graph(folder, nodes, edges)
        result = {"nodes": nodes, "edges": edges, **in_child("batches", folder, epochs, batch_size)}
        available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
        if nodes * PLAIN_BYTES_PER_NODE < 0.8 * available:
            result["plain"] = in_child("plain", folder)
    return result


def scaled_plain(measured: dict[str, Any], share: int, nodes: int) -> dict[str, Any]:
    """Return figures for a graph `share` times as large, in proportion."""
    return {
        "computed_from_nodes": nodes,
        "computed_epoch_s": share * measured["epoch_s"],
        "computed_peak_mb": LIBRARIES_MB + share * (measured["peak_mb"] - LIBRARIES_MB),
    }


def table(largest: int) -> list[dict[str, Any]]:
    """Measure 10⁵, 10⁶, … edges, ten per node, and compute two sizes more from the largest."""
    rows: list[dict[str, Any]] = []
    for edges in (10**5, 10**6, 10**7):
        if edges <= largest:
            row = measure(edges // 10, edges)
            before = rows[-1] if rows else {}
            if "plain" not in row and "epoch_s" in before.get("plain", {}):
                row["plain"] = scaled_plain(before["plain"], edges // before["edges"], before["nodes"])
            rows.append(row)
            print(json.dumps(row), file=sys.stderr, flush=True)
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
    """Return where figures were measured."""
    import torch

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return {
        "cores": len(os.sched_getaffinity(0)),
        "threads": os.environ.get("OMP_NUM_THREADS", "2"),
        "memory_gb": round(memory, 1),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "settings": {
            "features": FEATURES,
            "channels": CHANNELS,
            "batch_size": BATCH,
            "num_neighbors": FAN_OUT,
        },
    }


def run_child(given: argparse.Namespace) -> dict[str, Any]:
    """Return what one of the processes measures."""
    if given.child == "batches":
        return run_batches(given.folder, given.epochs, given.batch_size)
    if given.child == "default-fit":
        return run_default_fit(given.folder, given.nodes, given.epochs)
    alone = {"plain": run_plain, "default-embed": run_default_embed, "default-search": run_default_search}
    return alone[given.child](given.folder)


def main() -> None:
    """Read the arguments and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--edges", type=int, default=10_000_000)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--largest", type=int, default=10**7)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda")
    parser.add_argument(
        "--batch-size", type=int, help=f"seeds of a batch; {BATCH}, and {CUDA_BATCH} on a GPU"
    )
    parser.add_argument("--commands", action="store_true", help="prepare, fit and embed, from Parquet")
    parser.add_argument("--embedding", action="store_true", help="memory and search of the default preset")
    parser.add_argument("--child", choices=("batches", "plain", *DEFAULTS), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help="with --commands: where files go, and are removed")
    given = parser.parse_args()
    if given.child is not None:
        print(json.dumps(run_child(given)))
        return
    if given.embedding:
        found = {"rows": embedding_rows(given.largest, given.epochs, given.folder)}
        print(json.dumps({"machine": machine(), **found}, indent=2))
        return
    if given.commands:
        with tempfile.TemporaryDirectory(prefix="h3gnn-scale-", dir=given.folder) as name:
            found = run_commands(Path(name), given.nodes, given.edges, given.epochs)
        print(json.dumps({"machine": machine(), **found}, indent=2))
        return
    if given.device != "cpu":
        with tempfile.TemporaryDirectory(prefix="h3gnn-scale-", dir=given.folder) as name:
            write_graph(Path(name) / "graph", given.nodes, given.edges)
            found = run_device(Path(name) / "graph", given.device, given.batch_size or CUDA_BATCH)
        print(
            json.dumps({"machine": machine(), "nodes": given.nodes, "edges": given.edges, **found}, indent=2)
        )
        return
    size = given.batch_size or BATCH
    rows = (
        table(given.largest)
        if given.table
        else [measure(given.nodes, given.edges, epochs=given.epochs, batch_size=size)]
    )
    result: dict[str, Any] = {"machine": machine()} | ({"rows": rows} if given.table else rows[0])
    if given.json:
        print(json.dumps(result, indent=2))
        return
    for row in rows:
        print("computed" if row.get("computed") else "measured", json.dumps(row))


if __name__ == "__main__":
    main()
