"""Real kills: SIGKILL at random moments, in processes of their own."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.program import run

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}

TRAIN_UNDER_FIRE = """
import hashlib, json, os, random, signal, sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
from h3gnn import H3GNN, Checkpoints
from h3gnn.graphs.synthetic import mixed_graph

home, chance = Path(sys.argv[1]), random.Random(int(sys.argv[2]))
graph = mixed_graph(60, words=20, splits=1)

def fitted(checkpoints):
    small = {"epochs": 40, "channels": 8, "n_models": 2, "token_dropout": 0.2, "mask_warmup": 3}
    model = H3GNN.from_preset("single", **small, device="cpu")
    model.fit(graph, checkpoints=checkpoints)
    parts = [model.embedding_.tobytes(), *(model.history_[name].tobytes() for name in model.history_.names)]
    return hashlib.sha256(b"".join(parts)).hexdigest()

def life(folder, seconds):
    # One process that trains in the folder, and is killed when its time is over; True if it came to the end.
    process = os.fork()
    if process == 0:
        digest = fitted(Checkpoints(folder, every=1, minutes=None, keep_finished=True))
        (folder / "digest").write_text(digest)
        os._exit(0)
    time.sleep(seconds)
    os.kill(process, signal.SIGKILL)
    return os.WIFEXITED(os.waitpid(process, 0)[1])

wanted = fitted(None)
started = time.monotonic()
fitted(Checkpoints(home / "timed", every=1))
whole = time.monotonic() - started
killed_at, digests = [], []
while len(killed_at) < 12:
    folder = home / str(len(digests))
    folder.mkdir()
    while not life(folder, chance.uniform(0.0, 0.6 * whole)):
        done = [int(path.name.split("-")[1]) for path in folder.glob("epoch-*")]
        killed_at.append(max(done, default=0))
    digests.append((folder / "digest").read_text())
print(json.dumps({"killed_at": killed_at, "same": [digest == wanted for digest in digests]}))
"""


@pytest.mark.slow
def test_runs_killed_at_random_moments_equal_the_uninterrupted_one(tmp_path: Path) -> None:
    """A dozen kills; each run is taken up again until it comes to its end."""
    seed = random.SystemRandom().randrange(10**6)
    command = [sys.executable, "-c", TRAIN_UNDER_FIRE, str(tmp_path), str(seed)]
    done = subprocess.run(command, env=ENVIRONMENT, check=False, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert all(outcome["same"]), (seed, outcome)
    assert any(0 < epoch < 40 for epoch in outcome["killed_at"]), outcome


KILLED_WRITE = """
import os, signal, sys
import torch
torch.set_num_threads(1)
from pathlib import Path
from h3gnn import H3GNN, Checkpoints
from h3gnn.graphs.checks import check_graph

place, moment = sys.argv[2], int(sys.argv[3])
home, name = (os, "fsync") if place == "fsync" else (Path, place)
unharmed, calls = getattr(home, name), 0

def dying(*arguments, **options):
    global calls
    calls += 1
    if calls == moment:
        os.kill(os.getpid(), signal.SIGKILL)
    return unharmed(*arguments, **options)

setattr(home, name, dying)
graph = check_graph(torch.eye(5), torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]]))
model = H3GNN.from_preset("single", epochs=6, channels=4, heads=2, device="cpu")
model.fit(graph, checkpoints=Checkpoints(sys.argv[1], every=1))
"""


@pytest.mark.parametrize(("place", "moment"), [("fsync", 1), ("fsync", 8), ("replace", 3), ("unlink", 2)])
def test_a_kill_in_the_middle_of_a_write_leaves_the_checkpoints_before_it(
    tmp_path: Path, place: str, moment: int
) -> None:
    import torch

    from h3gnn import H3GNN, Checkpoints
    from h3gnn.graphs.checks import check_graph

    outcome = run(tmp_path / "run", place, moment, cwd=tmp_path, code=KILLED_WRITE)
    assert outcome.returncode == -9, outcome.stderr
    graph = check_graph(torch.eye(5), torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]]))
    model = H3GNN.from_preset("single", epochs=6, channels=4, heads=2, device="cpu")
    wanted = model.fit_transform(graph)
    again = model.fit_transform(graph, checkpoints=Checkpoints(tmp_path / "run", every=1))
    assert again.tobytes() == wanted.tobytes()
    assert not (tmp_path / "run").exists()  # the half-written file as well
