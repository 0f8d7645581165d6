"""The example for Ray Train on a local Ray of two workers, one of which is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from h3gnn import H3GNN
from h3gnn.ondisk.mapped import open_mapped

ROOT = Path(__file__).parents[2]
EPOCHS = 12
EXACT = {"edge_weights": "fixed", "precision": "float32"}
"""Settings with which one and two processes differ by rounding alone."""
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
PROGRAM = """
import sys
sys.path[:0] = sys.argv.pop(1).split(":")
from examples import ray_train
from tests.training import test_ray
ray_train.main(lambda config: test_ray.train_and_die(ray_train.train, config))
"""


def train_and_die(train: Any, config: dict[str, Any]) -> None:
    """Train in a worker; the second one is killed after a few epochs, once."""
    import ray.train

    run = Path(config["run"])
    rank = ray.train.get_context().get_world_rank()
    Path(run / f"worker-{rank}-{os.getpid()}").touch()

    def die() -> None:
        while not any(int(path.name.split("-")[1]) >= 3 for path in run.glob("checkpoints/epoch-*")):
            time.sleep(0.002)
        (run / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)

    if rank == 1 and not (run / "killed").exists():
        threading.Thread(target=die, daemon=True).start()
    train({**config, "settings": config["settings"] | EXACT})


@pytest.mark.slow
def test_two_workers_under_ray_train_as_one_process_though_one_is_lost(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs `pip install 'h3gnn[ray]'`")
    random, nodes = np.random.default_rng(0), 600
    ids = [f"n{number}" for number in range(nodes)]
    columns = {f"x{column}": random.normal(size=nodes) for column in range(8)}
    pd.DataFrame({"id": ids, **columns}).to_parquet(tmp_path / "f.parquet")
    ends = {"source": random.choice(ids, 3000), "target": random.choice(ids, 3000)}
    pd.DataFrame(ends).to_parquet(tmp_path / "e.parquet")
    places = f"{ROOT}:{ROOT / 'src'}"
    settings = ("--epochs", str(EPOCHS), "--batch-size", "128")
    command = [sys.executable, "-c", PROGRAM, places, "e.parquet", "f.parquet", "run", *settings]
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": places}
    how: dict[str, Any] = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
    done = subprocess.run(command, check=False, timeout=280, **how)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "killed").exists()
    assert len([*tmp_path.glob("run/worker-1-*")]) == 2  # the killed one, and the one that continued
    found = H3GNN.load(tmp_path / "run" / "model")
    assert found.history_.completed == EPOCHS
    whole = H3GNN.from_preset("single", epochs=EPOCHS, batch_size=128, device="cpu", **EXACT)
    whole.fit(open_mapped(tmp_path / "run" / "graph"))
    rows, expected = (np.concatenate([*model.embedding_chunks()]) for model in (found, whole))
    np.testing.assert_allclose(rows, expected, atol=1e-4)
