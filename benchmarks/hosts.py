"""Faults of a job on two hosts: `python -m benchmarks.hosts`.

Each host is a network namespace with one torchrun agent (both share a disk), so that a host can be killed
and the link between them be cut. Every row says how the job ends, and how far its embedding is from that of
one process. Needs the right to create namespaces (`ip netns`). `--embed` measures how long one process and
two take to embed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Self

import numpy as np

from benchmarks.scale import machine, model_of, write_graph

NODES, EDGES, FEATURES, EPOCHS, LATE_EPOCHS = 1000, 5000, 8, 40, 300
EMBEDDED_NODES = 1_600_000
"""Of the graph that one process and two embed, with ten times as many edges."""
TIMEOUT = 15
"""H3GNN_RANK_TIMEOUT, in seconds."""
RETRIES = 6
"""Of the kernel, before it gives up a connection: half a minute. With its default, 15, the agent of torchrun
on the far side of a cut link ends after 15 minutes (928 s measured once), its workers after the timeout."""
MARGIN = 10
"""Seconds after which a worker that should have ended hangs, beside the timeout."""
CLOSE = 1e-4
"""Largest difference of an embedding from that of one process."""
JOINABLE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Without it, a host that joins a running job of torch 2.13 waits for an address that is never sent."""
SETTINGS: dict[str, Any] = {
    **{"n_models": 2, "channels": 8, "epochs": EPOCHS, "batch_size": 200, "num_neighbors": [3, 2]},
    **{"edge_weights": "fixed", "precision": "float32", "device": "cpu"},
}
FIT = (
    *("fit", "graph", "--preset", "single", "--models", "2", "--channels", "8", "--device", "cpu"),
    *("--batch-size", "200", "--fan-out", "3,2", "--checkpoint-every", "5"),
    *("--set", "edge_weights=fixed", "--set", "precision=float32"),
)

EXISTING = """
import torch
import torch.distributed as dist
from h3gnn.estimator import H3GNN
from h3gnn.ondisk.mapped import open_mapped

dist.init_process_group("gloo")
settings = {SETTINGS}
model = H3GNN.from_preset("single", **settings).fit(open_mapped("graph"))
if dist.get_rank() == 0:
    model.save("existing")
ones = torch.ones(1)
dist.all_reduce(ones)  # the group still works
assert int(ones) == dist.get_world_size()
dist.destroy_process_group()
"""


class Loopback:
    """Two hosts that are one: every process is in the network of this machine."""

    name = "one machine, two agents"

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.port = server.getsockname()[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def address(self, host: int) -> str:
        """Return the address of a host."""
        return "127.0.0.1"

    def interface(self, host: int) -> str:
        """Return the name of its network interface."""
        return "lo"

    def within(self, host: int) -> list[str]:
        """Return the beginning of a command on a host."""
        return []


class Namespaces(Loopback):
    """Two network namespaces with a link between them."""

    name = "two network namespaces on one machine, one torchrun agent in each"

    def __init__(self) -> None:
        super().__init__()
        self._names = [f"h3gnn-{os.getpid()}-{host}" for host in (0, 1)]
        self._subnet = f"10.213.{os.getpid() % 250}"

    @staticmethod
    def permitted() -> bool:
        """Return whether this process may create namespaces and links."""
        try:
            with Namespaces():
                return True
        except (OSError, subprocess.CalledProcessError):
            return False

    def __enter__(self) -> Self:
        first, second = self._names
        try:
            for name in self._names:
                _ip("netns", "add", name)
            _ip("link", "add", "veth0", "netns", first, "type", "veth", "peer", "veth1", "netns", second)
            for host, name in enumerate(self._names):
                _ip("-n", name, "addr", "add", f"{self.address(host)}/24", "dev", self.interface(host))
                for interface in ("lo", self.interface(host)):
                    _ip("-n", name, "link", "set", interface, "up")
                retries = f"net.ipv4.tcp_retries2={RETRIES}"
                subprocess.run([*self.within(host), "sysctl", "-qw", retries], check=True)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for host, name in enumerate(self._names):
            with suppress(OSError, subprocess.CalledProcessError):
                self.kill(host)
                _ip("netns", "del", name)

    def address(self, host: int) -> str:
        """Return the address of a host."""
        return f"{self._subnet}.{host + 1}"

    def interface(self, host: int) -> str:
        """Return the name of its network interface."""
        return f"veth{host}"

    def within(self, host: int) -> list[str]:
        """Return the beginning of a command on a host."""
        return ["ip", "netns", "exec", self._names[host]]

    def kill(self, host: int) -> None:
        """Kill every process on a host at once."""
        for process in _ip("netns", "pids", self._names[host]).split():
            with suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)

    def cut(self) -> None:
        """Cut the link between the hosts."""
        _ip("-n", self._names[0], "link", "set", "veth0", "down")


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


@dataclass
class Agents:
    """The torchrun agents of a job, one on each host; `words` is what the agents and workers print."""

    network: Loopback
    folder: Path
    nnodes: str = "2"
    processes: int = 1
    restarts: int = 0
    environment: dict[str, str] = field(default_factory=dict)
    running: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, host: int, *arguments: str) -> None:
        """Start the agent of a host, with the arguments of h3gnn."""
        of = self.network
        command = [*of.within(host), sys.executable, "-m", "torch.distributed.run", "--nnodes", self.nnodes]
        command += ["--nproc-per-node", str(self.processes), "--max-restarts", str(self.restarts)]
        command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{of.address(0)}:{of.port}"]
        command += ["--rdzv-conf", f"is_host={int(host == 0)},last_call_timeout=2,read_timeout={TIMEOUT}"]
        command += ["--local-addr", of.address(host)]
        command += [] if arguments[0].endswith(".py") else ["-m", "h3gnn"]
        command += arguments
        here = os.environ | {"OMP_NUM_THREADS": "1", "H3GNN_RANK_TIMEOUT": str(TIMEOUT), **self.environment}
        here["GLOO_SOCKET_IFNAME"] = of.interface(host)
        with (self.folder / f"host-{host}.txt").open("ab") as out:
            self.running[host] = subprocess.Popen(command, cwd=self.folder, env=here, stdout=out, stderr=out)

    def workers(self, host: int) -> list[int]:
        """Return the processes that the agent of a host has started."""
        agent = self.running[host].pid
        try:
            listed = Path(f"/proc/{agent}/task/{agent}/children").read_text(encoding="ascii").split()
        except OSError:
            return []
        return [int(one) for one in listed if _is_alive(one)]

    def words(self) -> str:
        """Return what has been printed so far."""
        return "".join(one.read_text(errors="replace") for one in sorted(self.folder.glob("host-?.txt")))

    def wait(self, seconds: float) -> list[int | None]:
        """Wait for all agents; return their exit codes, None for one that is still there."""
        end = time.monotonic() + seconds
        for agent in self.running.values():
            with suppress(subprocess.TimeoutExpired):
                agent.wait(max(0.0, end - time.monotonic()))
        return [agent.poll() for agent in self.running.values()]

    def close(self) -> None:
        """Kill what is left."""
        for host, agent in self.running.items():
            for process in (*self.workers(host), agent.pid):
                if agent.poll() is None:
                    with suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
            agent.wait()


def _is_alive(process: str) -> bool:
    try:
        status = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2]
    except OSError:
        return False
    return status.split()[0] != "Z"


@contextmanager
def agents(network: Loopback, folder: Path, **how: Any) -> Iterator[Agents]:
    """Run agents in the block; kill what is left of them at its end."""
    for old in folder.glob("host-?.txt"):
        old.unlink()
    job = Agents(network, folder, **how)
    try:
        yield job
    finally:
        job.close()


def wait_until(holds: Callable[[], object], seconds: float) -> float:
    """Wait until something holds; return the seconds."""
    begin = time.monotonic()
    while not holds():
        if time.monotonic() - begin > seconds:
            raise TimeoutError(f"not within {seconds:g} s")
        time.sleep(0.05)
    return time.monotonic() - begin


def make_graph(folder: Path, nodes: int = NODES, edges: int = EDGES, features: int = FEATURES) -> None:
    """Write a random graph, prepared as `graph` in a folder."""
    import pandas as pd

    from h3gnn.ondisk.prepare import prepare_graph

    random = np.random.default_rng(0)
    ends = random.integers(0, nodes, (2, edges))
    pd.DataFrame({"source": ends[0], "target": ends[1]}).to_csv(folder / "e.csv", index=False)
    columns = {f"f{i}": random.normal(size=nodes).round(3) for i in range(features)}
    pd.DataFrame({"id": np.arange(nodes), **columns}).to_csv(folder / "f.csv", index=False)
    prepare_graph(folder / "e.csv", folder / "f.csv", folder / "graph")


def embedding(path: Path) -> np.ndarray:
    """Return the rows of a file of embeddings, or of a folder of parts, in their order."""
    import pandas as pd

    values: np.ndarray = pd.read_parquet(path).drop(columns="node").to_numpy()
    return values


@dataclass
class Bench:
    """The graph and what one process makes of it."""

    network: Loopback
    folder: Path
    whole: np.ndarray

    def job(self, **how: Any) -> Any:
        """Return agents on the two hosts."""
        return agents(self.network, self.folder, **how)

    def begin(self, job: Agents, run: str, *hosts: int, epochs: int = EPOCHS) -> None:
        """Start a fit on some hosts and wait for its first checkpoint."""
        for host in hosts:
            job.start(host, *FIT, "--epochs", str(epochs), "--out", run)
        folder = self.folder / run / "checkpoints"
        wait_until(lambda: any(folder.glob("epoch-*")) or None not in job.wait(0), 120)
        if not any(folder.glob("epoch-*")):
            raise RuntimeError(f"the job ended before its first checkpoint:\n{job.words()}")

    def difference(self, run: str) -> float:
        """Return how far the embedding of a run is from that of one process."""
        embed(self.folder, run, f"{run}.parquet")
        return float(np.abs(embedding(self.folder / f"{run}.parquet") - self.whole).max())

    def resume(self, run: str, processes: int = 0) -> float:
        """Resume a run with one process, or with some on each of two hosts; return the difference."""
        if not processes:
            call(self.folder, "fit", "--resume", run)
            return self.difference(run)
        with self.job(processes=processes) as job:
            for host in (0, 1):
                job.start(host, "fit", "--resume", run)
            ended = job.wait(120)
            if ended != [0, 0]:
                raise RuntimeError(f"exit codes {ended}:\n{job.words()}")
        return self.difference(run)

    def no_fault(self) -> dict[str, Any]:
        """Train on two hosts without a fault."""
        with self.job() as job:
            self.begin(job, "plain", 0, 1)
            codes = job.wait(120)
        return {"codes": codes, "wanted": [0, 0], "difference": self.difference("plain")}

    def fault(
        self, run: str, cause: Callable[[Agents], None], survivors: tuple[int, ...], *, processes: int = 0
    ) -> dict[str, Any]:
        """Cause a fault; the workers of the surviving hosts have to end, and the run can be resumed."""
        with self.job() as job:
            self.begin(job, run, 0, 1)
            cause(job)
            ended = wait_until(lambda: not any(map(job.workers, survivors)), TIMEOUT + MARGIN)
            began = time.monotonic()
            codes = job.wait(100)
            agents_s = round(ended + time.monotonic() - began, 1)
            said = f"h3gnn fit --resume {run}" in job.words()
        codes = [codes[host] for host in survivors]
        row = {
            "ended_s": round(ended, 1),
            "agents_s": agents_s,
            "codes": codes,
            "wanted": [1] * len(codes),
            "said": said,
        }
        return row | {"difference": self.resume(run, processes)}

    def restart(self, run: str, cause: Callable[[Agents], None], **how: Any) -> dict[str, Any]:
        """Cause a fault that torchrun restarts from."""
        began = time.monotonic()
        with self.job(restarts=2, **how) as job:
            self.begin(job, run, 0, 1)
            cause(job)
            codes = job.wait(120)
        wanted = [0 if code == 0 or host == 0 else code for host, code in enumerate(codes)]
        row = {"job_s": round(time.monotonic() - began, 1), "codes": codes, "wanted": wanted}
        return row | {"difference": self.difference(run)}

    def late(self) -> dict[str, Any]:
        """Let the second host join a running job."""
        with self.job(nnodes="1:2", restarts=1, environment=JOINABLE) as job:
            self.begin(job, "late", 0, epochs=LATE_EPOCHS)
            job.start(1, *FIT, "--epochs", str(LATE_EPOCHS), "--out", "late")
            wait_until(lambda: job.workers(1) or None not in job.wait(0), 60)
            joined = bool(job.workers(1))
            codes = job.wait(150)
        call(self.folder, *FIT, "--epochs", str(LATE_EPOCHS), "--out", "late-whole")
        embed(self.folder, "late-whole", "late-whole.parquet")
        own, self.whole = self.whole, embedding(self.folder / "late-whole.parquet")
        found, self.whole = self.difference("late"), own
        return {"codes": codes, "wanted": [0, 0], "said": joined, "difference": found}

    def existing_group(self) -> dict[str, Any]:
        """Fit in processes that have made a process group themselves, as those of Ray Train have."""
        (self.folder / "existing.py").write_text(
            EXISTING.replace("{SETTINGS}", repr(SETTINGS)), encoding="utf-8"
        )
        with self.job() as job:
            for host in (0, 1):
                job.start(host, "existing.py")
            codes = job.wait(120)
            words = job.words()
        if codes != [0, 0]:
            raise RuntimeError(words)
        call(self.folder, "embed", "existing", "--out", "existing.parquet")
        return {"codes": codes, "wanted": [0, 0], "difference": self.difference("existing")}


def call(folder: Path, *arguments: str) -> None:
    """Run a command of h3gnn in one process."""
    here = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "h3gnn", *arguments],
        cwd=folder,
        env=here,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)


def embed(folder: Path, run: str, out: str) -> None:
    """Write the embedding of a run, in one process."""
    call(folder, "embed", run, "--out", out)


def kill_worker(job: Agents) -> None:
    """Kill the worker of the second host."""
    os.kill(job.workers(1)[0], signal.SIGKILL)


def make_bench(network: Loopback, folder: Path) -> Bench:
    """Prepare the graph and train on it in one process."""
    make_graph(folder)
    call(folder, *FIT, "--epochs", str(EPOCHS), "--out", "whole")
    embed(folder, "whole", "whole.parquet")
    return Bench(network, folder, embedding(folder / "whole.parquet"))


def faults(bench: Bench) -> dict[str, Callable[[], dict[str, Any]]]:
    """Return the rows of the table; the link stays cut after the last one."""
    network = bench.network
    assert isinstance(network, Namespaces)
    kill, cut = network.kill, network.cut
    return {
        "no fault": bench.no_fault,
        "a worker is killed": lambda: bench.fault("worker", kill_worker, (0, 1)),
        "the second host is killed": lambda: bench.fault("second", lambda _: kill(1), (0,)),
        "the first host is killed": lambda: bench.fault("first", lambda _: kill(0), (1,)),
        "a worker is killed; 2 × 2 processes resume": lambda: bench.fault(
            "more", kill_worker, (0, 1), processes=2
        ),
        "a worker is killed, `--max-restarts 2`": lambda: bench.restart("restart", kill_worker),
        "the second host is killed, `--nnodes 1:2 --max-restarts 2`": lambda: bench.restart(
            "fewer", lambda _: kill(1), nnodes="1:2"
        ),
        "the second host joins late, `--nnodes 1:2`": bench.late,
        "a process group exists before the fit": bench.existing_group,
        "the link is cut": lambda: bench.fault("link", lambda _: cut(), (0, 1)),
    }


def judged(what: str, row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with whether it ended as it should."""
    right = row["codes"] == row["wanted"] and row["difference"] <= CLOSE and row.get("said", True)
    return {"what": what, **row, "as_it_should": right}


def markdown(found: dict[str, Any]) -> str:
    """Return the table of faults, and what two processes save."""
    lines = ["| fault | exit codes | workers ended after | agents after | difference | as it should |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for row in found["rows"]:
        after = (f"{row[name]:.0f} s" if name in row else "–" for name in ("ended_s", "agents_s"))
        codes = ", ".join(map(str, row["codes"]))
        close, right = f"{row['difference']:.0e}", "yes" if row["as_it_should"] else "**no**"
        lines.append(f"| {' | '.join([row['what'], codes, *after, close, right])} |")
    one = found["embed"]
    rows = "the same rows" if one["same_rows"] else "**other rows**"
    times = (
        f"`embed` of {one['nodes']:,} nodes and {one['edges']:,} edges, 512 columns, on two cores: one "
        f"process with one thread takes {one['one_s']} s, one with two threads {one['two_threads_s']} s; two "
        f"with one thread each, as torchrun starts them, {one['two_s']} s ({one['ratio']:.2f} of the first), "
        f"and they write {rows}."
    )
    return "\n".join([*lines, "", times])


def embedding_time(folder: Path, processes: int, threads: int) -> dict[str, Any]:
    """Measure the command `embed`, of one process or of several that torchrun starts on this machine."""
    out = folder / f"embedded-{processes}-{threads}.parquet"
    command = [sys.executable]
    if processes > 1:
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command += ["-m", "h3gnn", "embed", "run", "graph", "--out", out.name]
    here = os.environ | {"OMP_NUM_THREADS": str(threads), "GLOO_SOCKET_IFNAME": "lo"}
    began = time.perf_counter()
    subprocess.run(command, cwd=folder, env=here, check=True, capture_output=True)
    seconds = time.perf_counter() - began
    for stored in (folder / "run").glob("embedding*"):  # the next command has to compute it, too
        stored.unlink()
    return {"processes": processes, "threads": threads, "seconds": round(seconds, 1), "out": out.name}


def prepare_embedding(folder: Path) -> None:
    """Write a random graph and an untrained model of it."""
    from h3gnn.ondisk.mapped import open_mapped

    write_graph(folder / "graph", EMBEDDED_NODES, 10 * EMBEDDED_NODES)
    model_of("cpu", 1024).fit(open_mapped(folder / "graph")).save(folder / "run", embedding="none")


def embedding_times(folder: Path, repeats: int) -> dict[str, Any]:
    """Measure one process and two in turn; compare what they write."""
    runs = [embedding_time(folder, *how) for _ in range(repeats) for how in ((1, 1), (2, 1), (1, 2))]
    best: dict[tuple[int, int], dict[str, Any]] = {}
    for run in runs:
        key = run["processes"], run["threads"]
        best[key] = min(best.get(key, run), run, key=lambda one: one["seconds"])
    one, two, threads = best[1, 1], best[2, 1], best[1, 2]
    written = [_hashes(folder / run["out"]) for run in (one, two)]
    return {
        "nodes": EMBEDDED_NODES,
        "edges": 10 * EMBEDDED_NODES,
        "repeats": repeats,
        "one_s": one["seconds"],
        "two_s": two["seconds"],
        "two_threads_s": threads["seconds"],
        "ratio": round(two["seconds"] / one["seconds"], 3),
        "same_rows": written[0] == written[1],
    }


def _hashes(path: Path) -> list[str]:
    """Return a hash of each 4,096 rows of a file of embeddings, or of a folder of parts."""
    import pyarrow.parquet as pq

    files = [path] if path.is_file() else sorted(path.iterdir())
    found, held = [], b""
    for file in files:
        for batch in pq.ParquetFile(file).iter_batches(4096):
            rows = np.stack([column.to_numpy() for column in batch.columns], axis=1).astype(np.float64)
            held += rows.tobytes()
            size = 4096 * rows.shape[1] * 8
            while len(held) >= size:
                found.append(hashlib.sha256(held[:size]).hexdigest())
                held = held[size:]
    return [*found, hashlib.sha256(held).hexdigest()]


def main() -> None:
    """Read the arguments, run the table, and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--embed", type=Path, help="only measure the embedding, in this folder")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--rows", type=int, nargs=2, default=(0, None), help="the first row, and the end")
    given = parser.parse_args()
    if given.embed:
        if not (given.embed / "run").exists():
            prepare_embedding(given.embed)
        print(json.dumps(embedding_times(given.embed, given.repeats), indent=2))
        return
    if not Namespaces.permitted():
        raise SystemExit("benchmarks.hosts needs the right to create network namespaces (`ip netns add`)")
    with tempfile.TemporaryDirectory(prefix="h3gnn-hosts-") as name, Namespaces() as network:
        rows = []
        for what, run in islice(faults(make_bench(network, Path(name))).items(), *given.rows):
            rows.append(judged(what, run()))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    about = {"machine": machine(), "network": network.name, "timeout_s": TIMEOUT, "epochs": EPOCHS}
    print(json.dumps({**about, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
