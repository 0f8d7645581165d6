"""Named settings of the estimator."""

from __future__ import annotations

from typing import Any

PRESETS: dict[str, dict[str, Any]] = {
    # The paper's equations as printed. What it leaves open is named in docs/method.md.
    "paper": {
        "channels": 128,
        "hops": 2,
        "hidden_channels": None,
        "heads": 4,
        "norm": "residual-post",
        "fusion": "attention",
        "output": "flatten",
        "edge_start": "normalized",
        "self_loops": True,
        "normalize": False,
        "batch_norm": False,
        "undirected": True,
        "objective": "teacher",
        "teacher_mode": "eval",
        "momentum": 0.99,
        "mask": "probability",
        "mask_ratio": 0.5,
        "exploit_ratio": 0.5,
        "mask_warmup": 20,
        "mask_token": "normal",
        "epochs": 200,
        "learning_rate": 0.005,
        "weight_decay": 0.0005,
        "lr_warmup": 10,
        "token_dropout": 0.1,
        "attention_dropout": 0.1,
        "n_models": 1,
        "scale_features": "none",
    },
}
