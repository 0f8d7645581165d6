"""Fit tables in Parquet under Ray Train: `python examples/ray_train.py edges.parquet features.parquet run/`.

Needs `pip install 'h3gnn[ray]'`, and on several machines a folder `run/` that all of them see. Ray makes the
process group, which h3gnn uses. When a worker is lost, Ray starts all of them again, and they continue from
the newest checkpoint in `run/checkpoints`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import ray.train
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

from h3gnn import H3GNN, Checkpoints
from h3gnn.ondisk.mapped import open_mapped
from h3gnn.ondisk.prepare import prepare_graph


def train(config: dict[str, Any]) -> None:
    """Fit the prepared graph in one of Ray's workers; the first one saves the model."""
    run = Path(config["run"])
    model = H3GNN.from_preset("single", **config["settings"])
    checkpoints = Checkpoints(run / "checkpoints", every=config["every"], keep_finished=True)
    model.fit(open_mapped(run / "graph"), checkpoints=checkpoints)
    if ray.train.get_context().get_world_rank() == 0:
        model.save(run / "model", embedding="none")


def main(worker: Any = train) -> None:
    """Prepare the graph, if that has not been done, and fit it."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("edges", "features", "run"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--gpus", action="store_true", help="one GPU for each worker")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--every", type=int, default=1, help="epochs between checkpoints")
    given = parser.parse_args()
    run = given.run.resolve()  # workers have other working directories
    if not (run / "graph").exists():
        prepare_graph(given.edges, given.features, run / "graph")
    # edge weights are computed, since mini-batches keep no state of edges
    settings = {"epochs": given.epochs, "batch_size": given.batch_size, "edge_weights": "computed"}
    trainer = TorchTrainer(
        worker,
        train_loop_config={"run": str(run), "every": given.every, "settings": settings},
        scaling_config=ScalingConfig(num_workers=given.workers, use_gpu=given.gpus),
        run_config=RunConfig(name="ray", storage_path=str(run), failure_config=FailureConfig(max_failures=3)),
    )
    trainer.fit()
    print(f"wrote {run / 'model'}: h3gnn embed {run / 'model'} --out embeddings.parquet")


if __name__ == "__main__":
    main()
