"""Where the time of an epoch goes on the CPU, by kind of operation: `python -m benchmarks.cpu --profile`."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.workload import engine_epoch, ensemble_epoch, graph_of
from h3gnn.resources import retain_heap
from h3gnn.training.resources import use_bfloat16

RESULTS = Path(__file__).parent / "results" / "profile.json"
KINDS = {
    "products": ("mm", "addmm", "addmm_", "bmm", "baddbmm", "baddbmm_"),
    "sparse products": ("sparse_sampled_addmm", "_embedding_bag", "_embedding_bag_forward_only"),
    "attention": ("_softmax", "_softmax_backward_data"),
    "GELU": ("gelu", "gelu_backward"),
    "norms": ("native_layer_norm", "native_layer_norm_backward", "addcmul"),
    "copies": ("copy_", "cat", "fill_", "index_select", "index_add_", "gather", "scatter_add_"),
    "sums and elementwise": (
        "add",
        "add_",
        "mul",
        "mul_",
        "sub",
        "div",
        "sum",
        "threshold_backward",
        "clamp_min",
    ),
    "Adam and average": ("_fused_adam_", "lerp_", "_foreach_lerp_"),
}
"""Operations of torch by kind; what is not named is the rest."""
ALONG_EDGES = ("_Propagate", "_PropagateBackward")
OF_FEATURES = ("_Project", "_ProjectBackward")
FEW_MODELS = 64
"""A batched product of more matrices than these is the attention's: one for each node and head."""


def kind_of(event: Any, sparse_features: bool) -> str:
    """Return the kind of a recorded operation."""
    name = event.name.removeprefix("aten::")
    kind = next((kind for kind, names in KINDS.items() if name in names), "rest")
    if kind != "products":
        return kind
    shape = event.input_shapes[0] if event.input_shapes else []
    if name == "bmm" and shape and shape[0] > FEW_MODELS:
        return "attention"
    within, parent = set(), event.cpu_parent
    while parent is not None:
        within.add(parent.name)
        parent = parent.cpu_parent
    sparse = within.intersection(ALONG_EDGES) or (
        sparse_features and "addmm" in name and within.intersection(OF_FEATURES)
    )
    return "sparse products" if sparse else kind


def shares_of(epoch: Callable[[], object], epochs: int, *, sparse_features: bool) -> dict[str, float]:
    """Return the share of each kind in the time of some epochs."""
    retain_heap()
    epoch()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        for _ in range(epochs):
            epoch()
    spent = dict.fromkeys([*KINDS, "rest"], 0.0)
    for event in recorded.events() or []:
        spent[kind_of(event, sparse_features)] += event.self_cpu_time_total
    return {kind: round(time / sum(spent.values()), 4) for kind, time in spent.items()}


def write_profile() -> None:
    """Profile an epoch of one model and of the default ensemble, print the shares and keep them."""
    cora, pubmed = graph_of("cora"), graph_of("pubmed")
    cases = [
        (f"{name}{', bfloat16' if half else ''}", make(half), epochs, sparse)
        for half in ([False, True] if use_bfloat16("auto", torch.device("cpu")) else [False])
        for name, make, epochs, sparse in (
            ("Cora, one model", partial(engine_epoch, cora, 128, 1), 10, True),
            ("PubMed, one model", partial(engine_epoch, pubmed, 128, 1), 2, False),
            ("Cora, default ensemble", partial(ensemble_epoch, cora), 2, True),
        )
    ]
    runs: list[dict[str, Any]] = []
    for name, epoch, epochs, sparse in cases:
        runs.append({"of": name, "shares": shares_of(epoch, epochs, sparse_features=sparse)})
        print(name, "  ".join(f"{kind} {100 * share:.0f} %" for kind, share in runs[-1]["shares"].items()))
    RESULTS.write_text(json.dumps({"runs": runs}, indent=1, ensure_ascii=False) + "\n")
    print(f"wrote {RESULTS}")
