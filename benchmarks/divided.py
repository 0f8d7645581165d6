"""Memory of each of several processes: `python -m benchmarks.divided --processes 1 2 4`.

A random graph in files, as in `benchmarks.scale`; then some steps of the preset `single`, with
fixed edge weights, in 1, 2, … processes. Each measures its own memory, without the pages of mapped
files, at the pages of the features that it has touched, at the bytes of what grows with the graph, and at
what it sends. From these bytes the same is computed for a graph a hundred times as large. `--folder` keeps
the graph, or takes one that was kept.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.scale import BATCH, CHANNELS, FAN_OUT, machine, write_graph

LARGER = 100
"""How many times as large the computed graph is."""


class PeakOfOwnMemory:
    """Measures this process's memory, without the pages of files, while the block runs; bytes."""

    def __init__(self) -> None:
        self.most, self._done = 0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakOfOwnMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.02):
            self.most = max(self.most, own_bytes())


def own_bytes() -> int:
    """Return the resident memory of this process without the pages of files."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def resident_bytes(path: Path) -> int:
    """Return how much of a mapped file this process has in memory."""
    found, within = 0, False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        if "-" in line.split(maxsplit=1)[0]:
            within = line.endswith(str(path))
        elif within and line.startswith("Rss:"):
            found += 1024 * int(line.split()[1])
    return found


def take_steps(folder: Path, steps: int) -> dict[str, Any]:
    """Train on some batches and return what this process holds and sends."""
    import torch

    from h3gnn.estimator import H3GNN
    from h3gnn.ondisk.mapped import open_mapped
    from h3gnn.preprocessing import Preprocessing, stack_builder
    from h3gnn.training.distributed import ProcessGroup, process_group
    from h3gnn.training.models import Training, derive_seeds, stack_step

    device = torch.device("cpu")
    torch.set_num_threads(1)
    how = {"channels": CHANNELS, "batch_size": BATCH, "num_neighbors": FAN_OUT, "edge_weights": "fixed"}
    settings = H3GNN.from_preset("single", device="cpu", smoothing=0.0, **how).get_settings()
    with PeakOfOwnMemory() as peak, process_group(device) as ranks:
        prepared = Preprocessing.of(settings).fit(open_mapped(folder))
        source, training = prepared.source(settings, device, ranks), Training.of(settings)
        stack = stack_builder(settings, prepared, device)(1)
        step = stack_step(stack, source, derive_seeds(0, 1), training, ranks=ranks)
        mask = training.mask_of(1)(0)(step.difficulty, step.generators)
        lines = [ranks, ranks.prefetching] if isinstance(ranks, ProcessGroup) else [ranks]
        before = [line.sent for line in lines]
        for batch in islice(source.epoch(step.order, ranks), steps):
            step.train_on(batch, mask)
        sent = [(line.sent - one) / steps for line, one in zip(lines, before, strict=True)]
        per_node = [step.difficulty, mask, source.support.in_degree, source.support.out_degree]
        numbers = 4 + 8  # the position of each node in a batch, and the order of an epoch
        return {
            "rank": ranks.rank,
            "own": peak.most,
            "per_node": sum(one.numel() * one.element_size() for one in per_node) + numbers * source.nodes,
            "features_resident": resident_bytes(folder / "features.bin"),
            "features_held": 4 * prepared.graph.num_features * len(ranks.shard(source.nodes)),
            "sent_for_training": sent[0],
            "sent_for_rows": sum(sent[1:]),
            "entries": source.support.entries,
        }


def in_processes(folder: Path, processes: int, steps: int) -> dict[str, Any]:
    """Measure in this many processes; return the largest figure of any of them."""
    with tempfile.TemporaryDirectory(prefix="h3gnn-divided-") as name:
        command = [sys.executable]
        if processes > 1:
            command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        command += ["-m", "benchmarks.divided", "--child", "--folder", str(folder), "--out", name]
        here = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **os.environ}
        done = subprocess.run(
            [*command, "--steps", str(steps)], env=here, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        found = [json.loads(path.read_text()) for path in Path(name).glob("*.json")]
    most = {key: max(one[key] for one in found) for key in found[0] if key != "rank"}
    return {"processes": processes, **most}


def computed(row: dict[str, Any]) -> dict[str, Any]:
    """Return the memory of a process on a graph that is `LARGER`; what does not grow stays as measured."""
    grows = row["per_node"]
    return {
        "own": row["own"] - grows + LARGER * grows,
        "features_held": LARGER * row["features_held"],
    }


def main() -> None:
    """Read the arguments, measure, and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--edges", type=int, default=10_000_000)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--folder", type=Path, help="where the graph is kept")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        found = take_steps(given.folder, given.steps)
        (given.out / f"{found['rank']}.json").write_text(json.dumps(found))
        return
    with tempfile.TemporaryDirectory(prefix="h3gnn-divided-") as name:
        folder = given.folder or Path(name) / "graph"
        if not folder.exists():
            write_graph(folder, given.nodes, given.edges)
        rows = []
        for processes in given.processes:
            row = in_processes(folder, processes, given.steps)
            rows.append({**row, "larger": computed(row)})
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    about = {"nodes": given.nodes, "edges": given.edges, "steps": given.steps, "larger": LARGER}
    print(json.dumps({"machine": machine(), **about, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
