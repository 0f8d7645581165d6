"""What each of several processes does in tests/training/test_divided.py; the test compares what they leave.

Every function runs in a fork (see tests/program.py) that has joined the others, and saves what it found.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from h3gnn.encoder import EncoderStack, build_support
from h3gnn.encoder.encode import GraphRows
from h3gnn.estimator import H3GNN
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.synthetic import mixed_graph
from h3gnn.storage.checkpoint_file import Checkpoints
from h3gnn.training import distributed
from h3gnn.training.batches import rows_in_memory, sampled_batches
from h3gnn.training.checkpoints import agree, put_back, take
from h3gnn.training.distributed import ProcessGroup, Ranks, together
from h3gnn.training.divided import divided_rows
from h3gnn.training.edges import SparseEdges
from h3gnn.training.exchange import Asked
from h3gnn.training.history import Recorder
from h3gnn.training.masking import RandomMask
from h3gnn.training.models import Training, stack_step
from h3gnn.training.step import Step
from tests.program import Program

CPU, NODES = torch.device("cpu"), 90
CODE = "from tests.training.ranked import main; main()"


def run_together(name: str, folder: Path, processes: int = 2) -> list[Any]:
    """Run a function of this module in several processes; return what each has saved."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    running = [Program(CODE, name, rank, processes, port, cwd=folder) for rank in range(processes)]
    for one in running:
        _, words = one.communicate()
        assert one.returncode == 0, words
    return [torch.load(folder / f"{name}-{rank}.pt") for rank in range(processes)]


def main() -> None:
    """Become one of several processes, as torchrun would start it."""
    name, rank, size, port = sys.argv[1:]
    told = {"RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update(told | {"GLOO_SOCKET_IFNAME": "lo"})
    torch.save(globals()[name](), f"{name}-{rank}.pt")


class Replicated(ProcessGroup):
    """The same processes, each with all of the features and of the state per edge: the plain version."""

    def __init__(self, group: ProcessGroup) -> None:
        self.__dict__ = group.__dict__

    def part(self, count: int, owner: int | None = None) -> range:
        return range(count)

    def ask(self, places: Tensor, count: int) -> Any:
        return AskedOfOneself(self, places)


class AskedOfOneself(Asked):
    """All places at hand: gradients of all processes are gathered everywhere, and added at each place."""

    def __init__(self, group: Replicated, places: Tensor) -> None:
        super().__init__(places)
        self.group = group

    def give(self, values: Tensor) -> Tensor:
        every = torch.cat(self.group._gather(self.places))
        rows = torch.cat(self.group._gather(values.t().contiguous()))
        self.places, which = torch.unique(every, return_inverse=True)
        return rows.new_zeros(len(self.places), rows.shape[1]).index_add_(0, which, rows).t()


def graph_rows(*, sparse: bool = False) -> tuple[Graph, GraphRows]:
    graph = mixed_graph(NODES, words=20, splits=1)
    features, support = graph.dense_features().double(), build_support(graph.edge_index, NODES)
    support = support.to(CPU, torch.double)
    return graph, rows_in_memory(features.to_sparse_csr() if sparse else features, support)


def step_of(kind: str, objective: Sequence[str], ranks: Ranks, *, divided: bool = True) -> Step:
    """Two models in batches of 40 seeds, with dropout, in these processes."""
    graph, rows = graph_rows()
    rows = divided_rows(rows, ranks, in_memory=True) if divided else rows
    pairs = "edges" in objective
    source = sampled_batches(rows, 2, CPU, batch_size=40, fan_out=[3, 2], paired=pairs)
    how = H3GNN.from_preset("single", n_models=2, learning_rate=0.01, objective=list(objective)).get_params()
    student = EncoderStack(
        graph.num_features, 8, 0, heads=2, token_dropout=0.2, edge_weights=kind, models=2, batch_norm=True
    )
    step = stack_step(student.double(), source, [0, 1], Training.of(how), 16, ranks)
    step.student.train()
    return step


def epochs(step: Step, count: int) -> None:
    for _ in range(count):
        step(RandomMask([0.4, 0.4]))


def state_of(step: Step) -> dict[str, Tensor]:
    """Return everything that the next epoch depends on, of all processes in the first one."""
    state = take(step, Recorder())
    return {f"{part}/{name}": one.clone() for part in state for name, one in state[part].items()}


def trained() -> dict[str, Any]:
    """Three epochs with everything divided, and with everything in each process."""
    found: dict[str, Any] = {}
    with together(CPU) as ranks:
        assert isinstance(ranks, ProcessGroup)
        for kind in ("learned", "fixed"):
            for objective in (("teacher",), ("teacher", "edges")):
                divided = step_of(kind, objective, ranks)
                plain = step_of(kind, objective, Replicated(ranks), divided=False)
                for step in (divided, plain):
                    epochs(step, 3)
                plain.ranks = Ranks()  # what follows asks for nothing that another process has
                if isinstance(plain.edges, SparseEdges):
                    plain.edges.ranks = Ranks()
                apart = [step.teacher_distance() for step in (divided, plain)]
                held = divided.edges.state().get("first", torch.empty(0, 0)).shape[1]
                key = f"{kind} {len(objective)}"
                found[key] = {"states": [state_of(divided), state_of(plain)], "apart": apart, "held": held}
    return found


def resumed() -> dict[str, Any]:
    """Four epochs; and two, whose state the first process takes and puts into other steps, and two more."""
    found: dict[str, Any] = {}
    with together(CPU) as ranks:
        for kind in ("learned", "fixed"):
            whole, half, again = (step_of(kind, ("teacher",), ranks) for _ in range(3))
            epochs(whole, 4)
            recorder = Recorder()
            for _ in range(2):
                loss, masked = half(RandomMask([0.4, 0.4]))
                recorder.add(loss=loss, masked=masked)
            state = take(half, recorder)
            begun = Recorder()
            if ranks.rank == 0:
                begun = put_back(again, state, recorder.names)
            begun = agree(again, begun)
            epochs(again, 2)
            found[kind] = [state_of(whole), state_of(again), len(begun)]
    return found


ASKED = {
    "own rows alone": ([3, 1, 2], [80, 50]),
    "nothing": ([3, 70], []),
    "the other's alone": ([89, 45], [0, 44, 7]),
    "the same": ([5, 60, 44, 45], [5, 60, 44, 45]),
}


def asked() -> dict[str, Any]:
    """Rows of features, dense and sparse, and values per place, of lists that differ in each process."""
    found: dict[str, Any] = {}
    with together(CPU) as ranks:
        assert isinstance(ranks, ProcessGroup)
        for sparse in (False, True):
            _, rows = graph_rows(sparse=sparse)
            several = [divided_rows(rows, ranks, in_memory=held) for held in (True, False)]
            for case, lists in ASKED.items():
                nodes = torch.tensor(lists[ranks.rank], dtype=torch.int64)
                wanted = rows.read(nodes).to_dense()
                equal = [bool(torch.equal(one.read(nodes).to_dense(), wanted)) for one in several]
                found[f"rows {case} {sparse}"] = equal
        values = torch.arange(2.0 * NODES).view(2, NODES)
        own = ranks.part(NODES)
        for case, lists in ASKED.items():
            places = torch.tensor(sorted(lists[ranks.rank]), dtype=torch.int64)
            request = ranks.ask(places, NODES)
            got, more = request.fetch(
                [values[:, own.start + request.places], values[:1, own.start + request.places]]
            )
            assert torch.equal(got, values[:, places]), case
            assert torch.equal(more, values[:1, places]), case
            summed = torch.zeros(1, NODES)
            summed[:, own.start + request.places] = request.give(torch.ones(1, len(places)))
            found[f"sums {case}"] = summed
        found["sent"] = ranks.aside.sent
    return found


def collected() -> dict[str, Any]:
    """Parts that come together and are handed out again, a few places at a time."""
    distributed.PLACES_AT_A_TIME = 2
    found: dict[str, Any] = {}
    with together(CPU) as ranks:
        assert isinstance(ranks, ProcessGroup)
        for count in (1, 2, 11):
            for dtype in (torch.int16, torch.float32):
                values = torch.arange(2 * count).view(2, count).to(dtype)
                own = ranks.part(count)
                whole = torch.zeros_like(values) if ranks.rank == 0 else None
                ranks.collect(values[:, own.start : own.stop], whole, count)
                again = torch.zeros(2, len(own), dtype=dtype)
                ranks.hand_out(None if whole is None else whole + 1, again, count)
                right = torch.equal(again, values[:, own.start : own.stop] + 1)
                found[f"{count} {dtype}"] = right and (whole is None or torch.equal(whole, values))
        found["words"] = [bool(ranks._last_words("one")), bool(ranks.aside._last_words("two"))]
    return found


def fitted(asked: str = "learned") -> Any:
    """The estimator with checkpoints in the folder, if that is there; else without."""
    graph = mixed_graph(NODES, words=20, splits=1)
    model = H3GNN.from_preset(
        "single", n_models=2, channels=8, heads=2, epochs=4, batch_size=40, precision="float32", device="cpu"
    )
    first = os.environ.get("RANK", "0") == "0"
    model.set_params(edge_weights=asked, momentum=0.9)
    kept = Checkpoints("kept", every=1, keep=9, keep_finished=True) if first else None
    model.fit(graph, checkpoints=kept)
    embedding: np.ndarray = model.embedding_
    return torch.from_numpy(embedding), model.encoder_.edges.logit.detach(), len(model.history_)
