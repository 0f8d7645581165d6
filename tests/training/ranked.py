"""Work of each process in tests/training/test_distributed.py, in forks (see tests/program.py)."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from h3gnn.encoder import EncoderStack, build_support
from h3gnn.encoder.encode import GraphRows
from h3gnn.estimator import H3GNN
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.synthetic import mixed_graph
from h3gnn.graphs.type_view import type_view
from h3gnn.storage.checkpoint_file import Checkpoints
from h3gnn.training.batches import SampledBatches
from h3gnn.training.checkpoints import collect_state, restore_state, synchronize
from h3gnn.training.distributed import ProcessGroup, Ranks, process_group, rows_in_memory, shard_rows
from h3gnn.training.history import Recorder
from h3gnn.training.masking import RandomMask
from h3gnn.training.models import Training, stack_step
from h3gnn.training.step import Step
from tests.graphs.test_type_view import films
from tests.program import Program

CPU, NODES = torch.device("cpu"), 90
CODE = "from tests.training.ranked import main; main()"


def run_together(name: str, folder: Path, processes: int = 2) -> list[Any]:
    """Run a function of this module in several processes and return their results."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    running = [Program(CODE, name, rank, processes, port, cwd=folder) for rank in range(processes)]
    for one in running:
        _, words = one.communicate()
        assert one.returncode == 0, words
    return [torch.load(folder / f"{name}-{rank}.pt") for rank in range(processes)]


def main() -> None:
    """Run as one of several processes of torchrun."""
    name, rank, size, port = sys.argv[1:]
    torchrun = {"RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update(torchrun | {"GLOO_SOCKET_IFNAME": "lo"})
    torch.save(globals()[name](), f"{name}-{rank}.pt")


def graph_rows(*, sparse: bool = False) -> tuple[Graph, GraphRows]:
    graph = mixed_graph(NODES, words=20, splits=1)
    features, support = graph.dense_features().double(), build_support(graph.edge_index, NODES)
    support = support.to(CPU, torch.double)
    return graph, rows_in_memory(features.to_sparse_csr() if sparse else features, support)


def step_of(
    kind: str, objective: Sequence[str], ranks: Ranks, *, sharded: bool = True, batch_norm: bool = True
) -> Step:
    """Two models in batches of 40 seeds, with dropout, in these processes."""
    graph, rows = graph_rows()
    rows = shard_rows(rows, ranks, in_memory=True) if sharded else rows
    pairs = "edges" in objective
    source = SampledBatches(rows, 2, CPU, batch_size=40, num_neighbors=[3, 2], paired=pairs)
    how = H3GNN.from_preset(
        "single", n_models=2, learning_rate=0.01, objective=list(objective)
    ).get_settings()
    student = EncoderStack(
        graph.num_features,
        8,
        0,
        heads=2,
        token_dropout=0.2,
        edge_weights=kind,
        models=2,
        batch_norm=batch_norm,
    )
    step = stack_step(student.double(), source, [0, 1], Training.of(how), 16, ranks)
    step.student.train()
    return step


def epochs(step: Step, count: int) -> None:
    for _ in range(count):
        step(RandomMask([0.4, 0.4]))


def state_of(step: Step) -> dict[str, Tensor]:
    """Return everything that the next epoch depends on."""
    state = collect_state(step, Recorder())
    return {f"{part}/{name}": one.clone() for part in state for name, one in state[part].items()}


CASES = [("computed", ("teacher", "edges")), ("fixed", ("teacher",))]


def trained(cases: Sequence[tuple[str, tuple[str, ...]]] = CASES, count: int = 2) -> dict[str, Any]:
    """Some epochs with sharded feature rows, and with all rows in each process."""
    found: dict[str, Any] = {}
    with process_group(CPU) as ranks:
        for kind, objective in cases:
            steps = [step_of(kind, objective, ranks, sharded=sharded) for sharded in (True, False)]
            for step in steps:
                epochs(step, count)
            distances = [step.teacher_distance() for step in steps]
            found[f"{kind} {objective}"] = {"states": [*map(state_of, steps)], "distances": distances}
    return found


def together_and_alone() -> dict[str, list[dict[str, Tensor]]]:
    """Many epochs of these processes together, and of this one alone."""
    found = {}
    with process_group(CPU) as ranks:
        for kind in ("fixed", "computed"):
            steps = [
                step_of(kind, ("teacher",), one, sharded=False, batch_norm=False) for one in (ranks, Ranks())
            ]
            for step in steps:
                epochs(step, 15)
            found[kind] = [
                {name: one.detach() for name, one in step.student.state_dict().items()} for step in steps
            ]
    return found


def trained_longer() -> dict[str, Any]:
    """The other combinations of edge weights and objectives as well."""
    return trained([*CASES, ("computed", ("teacher",)), ("fixed", ("teacher", "edges"))], 3)


def resumed() -> dict[str, Any]:
    """Two epochs; and one, whose state the first process restores into another step, and one more."""
    found: dict[str, Any] = {}
    with process_group(CPU) as ranks:
        for kind in ("computed", "fixed"):
            whole, half, again = (step_of(kind, ("teacher",), ranks) for _ in range(3))
            epochs(whole, 2)
            recorder = Recorder()
            loss, masked = half(RandomMask([0.4, 0.4]))
            recorder.add(loss=loss, masked=masked)
            state = collect_state(half, recorder)
            begun = Recorder()
            if ranks.rank == 0:
                begun = restore_state(again, state, recorder.names)
            begun = synchronize(again, begun)
            epochs(again, 1)
            found[kind] = [state_of(whole), state_of(again), len(begun)]
    return found


ASKED = {
    "own rows alone": ([3, 1, 2], [80, 50]),
    "nothing": ([3, 70], []),
    "the other's alone": ([89, 45], [0, 44, 7]),
    "the same": ([5, 60, 44, 45], [5, 60, 44, 45]),
}


def asked() -> dict[str, Any]:
    """Rows of features, dense and sparse, of lists that differ in each process."""
    found: dict[str, Any] = {}
    with process_group(CPU) as ranks:
        assert isinstance(ranks, ProcessGroup)
        for sparse in (False, True):
            _, rows = graph_rows(sparse=sparse)
            several = [shard_rows(rows, ranks, in_memory=held) for held in (True, False)]
            for case, lists in ASKED.items():
                nodes = torch.tensor(lists[ranks.rank], dtype=torch.int64)
                wanted = rows.read(nodes).to_dense()
                equal = [bool(torch.equal(one.read(nodes).to_dense(), wanted)) for one in several]
                found[f"rows {case} {sparse}"] = equal
        found["sent"] = ranks.prefetching.sent
        found["messages"] = [bool(ranks._message("one")), bool(ranks.prefetching._message("two"))]
    return found


def fitted() -> Any:
    """The estimator, with checkpoints in the current folder."""
    graph = mixed_graph(NODES, words=20, splits=1)
    model = H3GNN.from_preset(
        "single", n_models=2, channels=8, heads=2, epochs=4, batch_size=40, precision="float32", device="cpu"
    )
    first = os.environ.get("RANK", "0") == "0"
    model.set_params(edge_weights="fixed", momentum=0.9)
    kept = Checkpoints("kept", every=1, keep=9, keep_finished=True) if first else None
    model.fit(graph, checkpoints=kept)
    embedding: np.ndarray = model.embedding_
    return torch.from_numpy(embedding), model.encoder_.input.weight.detach(), len(model.history_)


def fitted_in_a_group() -> Any:
    """The same in a thread of processes that have made a process group, as those of Ray Train."""
    dist.init_process_group("gloo")
    with ThreadPoolExecutor(1) as thread:
        found = thread.submit(fitted).result()
    ones = torch.ones(1)
    dist.all_reduce(ones)  # the group is kept
    assert int(ones) == dist.get_world_size()
    dist.destroy_process_group()
    return found


def typed() -> dict[str, Tensor]:
    """The graph of one node type, in batches."""
    settings: dict[str, Any] = {"n_models": 2, "channels": 8, "heads": 2, "epochs": 3, "batch_size": 16}
    settings |= {"precision": "float32", "device": "cpu", "edge_weights": "fixed"}
    model = H3GNN.from_preset("single", **settings).fit(type_view(films(own=False), "film"))
    return {name: one.detach() for name, one in model.encoder_.state_dict().items()}
