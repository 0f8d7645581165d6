"""What other libraries do too, beside them in the same run: k-means, silhouettes, t-SNE and the linear probe.

k-means: `lloyd_clusters`, all starts at once on the device, against scikit-learn's `KMeans` on the CPU, which
first turns the rows into as few columns as there are rows. Inertia is the mean over seeds.

Silhouettes: of eleven clusterings, as where the number of clusters is picked, against scikit-learn's
`silhouette_score` of each.

t-SNE: as the page places nodes, against scikit-learn's and openTSNE's defaults (where it is installed). The
quality is that of the places: the KL divergence of the same perplexity for all, and the share of each node's
ten nearest that stay among its ten nearest.

Probe: all splits and strengths, against scikit-learn's `LogisticRegression` (its seconds are those of one
split, times the splits). The losses of the first split are compared, the largest difference over strengths.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from h3gnn.evaluation.clustering import lloyd_clusters, project_to_plane, silhouettes
from h3gnn.evaluation.probe import (
    L2_GRID,
    Regressions,
    fit_logistic,
    probe_candidates,
    project_onto,
    standardise,
)

SEEDS = range(3)
CLUSTERED = [(183, 12288, 5), (2708, 512, 7), (2708, 6144, 7), (7600, 512, 5), (19717, 512, 3)]
"""Nodes, columns and clusters of an embedding."""
MEASURED = [(1000, 2048), (5000, 512)]
"""Nodes and columns whose silhouettes are measured."""
PLACED = [(1000, 512), (4000, 512)]
"""Nodes and columns that are placed."""
PROBED = [
    (183, 12288, 5, 10, 0.48),
    (3000, 2048, 10, 10, 0.48),
    (2708, 6144, 7, 1, 0.05),
    (7600, 512, 5, 10, 0.48),
]
"""Nodes, columns, classes, splits, and the share of training nodes."""
COUNTS = range(2, 13)
"""Numbers of clusters whose silhouettes are measured."""
NEAR, PERPLEXITY = 10, 30.0
LONG = 2000
"""Iterations that scikit-learn may take."""


def planted(nodes: int, width: int, classes: int) -> tuple[Tensor, Tensor]:
    """Return rows like those of an encoder, some hidden columns spread over many, and their classes."""
    draw = torch.Generator().manual_seed(0)
    labels = torch.randint(classes, (nodes,), generator=draw)
    hidden = 0.5 * torch.randn(classes, 64, generator=draw)[labels] + torch.randn(nodes, 64, generator=draw)
    noise = 0.3 * torch.randn(nodes, width, generator=draw)
    return torch.relu(hidden @ torch.randn(64, width, generator=draw) / 8 + noise), labels


def timed(work: Callable[[], Any], device: torch.device, repeats: int = 3) -> tuple[float, Any]:
    """Return the least seconds of some runs after a first one, and what the last returned."""
    best, found = float("inf"), work()
    for _ in range(repeats):
        started = time.perf_counter()
        found = work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - started)
    return best, found


def inertia(rows: Tensor, clusters: npt.NDArray[Any]) -> float:
    """Return the sum of squared distances to the means of the clusters."""
    parts = [rows[torch.from_numpy(clusters == one)].double() for one in np.unique(clusters)]
    return sum(float((part - part.mean(dim=0)).square().sum()) for part in parts)


def compare_kmeans(
    nodes: int, width: int, clusters: int, device: torch.device, reference: bool = True
) -> dict[str, Any]:
    """Return seconds of ten starts and the mean inertia, of ours and of scikit-learn's."""
    rows, _ = planted(nodes, width, clusters)
    there = rows.to(device)
    ways = {"ours": lambda seed: lloyd_clusters(there, clusters, 10, seed).cpu().numpy()}
    if reference:
        ways["scikit-learn"] = lambda seed: KMeans(clusters, n_init=10, random_state=seed).fit_predict(
            there.cpu().numpy()
        )
    row: dict[str, Any] = {"nodes": nodes, "columns": width, "clusters": clusters}
    for name, way in ways.items():
        seconds, found = timed(lambda way=way: [way(seed) for seed in SEEDS], device, repeats=1)  # type: ignore[misc]
        row[name] = {"seconds": seconds / len(SEEDS), "inertia": np.mean([inertia(rows, f) for f in found])}
    return row


def compare_silhouettes(nodes: int, width: int, reference: bool = True) -> dict[str, Any]:
    """Return seconds of the silhouettes of eleven clusterings, and how far ours are from scikit-learn's."""
    from sklearn.metrics import silhouette_score

    rows = planted(nodes, width, 7)[0]
    several = [np.random.default_rng(count).integers(count, size=nodes) for count in COUNTS]
    seconds, ours = timed(lambda: silhouettes(rows, several), torch.device("cpu"), 1)
    row: dict[str, Any] = {"nodes": nodes, "columns": width, "clusterings": len(several)}
    row["ours"] = {"seconds": seconds}
    if reference:
        began = time.perf_counter()
        theirs = [silhouette_score(rows.numpy(), one) for one in several]
        row["scikit-learn"] = {"seconds": time.perf_counter() - began}
        row["ours"]["difference"] = float(np.abs(np.array(ours) - theirs).max())
    return row


def compare_places(nodes: int, width: int, reference: bool = True) -> dict[str, Any]:
    """Return seconds and quality of maps, of ours and of other libraries' t-SNE."""
    rows = planted(nodes, width, 7)[0].numpy()
    ways: dict[str, Callable[[], npt.NDArray[Any]]] = {"ours": lambda: project_to_plane(rows)}
    if reference:
        ways["scikit-learn"] = lambda: _scikit_learn_places(rows)
    if reference and find_spec("openTSNE") is not None:
        ways["openTSNE"] = lambda: _open_tsne_places(rows)
    row: dict[str, Any] = {"nodes": nodes, "columns": width}
    for name, way in ways.items():
        began = time.perf_counter()
        places = way()
        row[name] = {"seconds": time.perf_counter() - began, **map_quality(rows, places)}
    return row


def _principal(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    from sklearn.decomposition import PCA

    found: npt.NDArray[Any] = PCA(50, random_state=0).fit_transform(rows)
    return found


def _scikit_learn_places(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    from sklearn.manifold import TSNE

    found: npt.NDArray[Any] = TSNE(perplexity=PERPLEXITY, random_state=0).fit_transform(_principal(rows))
    return found


def _open_tsne_places(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    from openTSNE import TSNE  # type: ignore[import-not-found]

    search = TSNE(perplexity=PERPLEXITY, n_jobs=torch.get_num_threads(), random_state=0)
    return np.asarray(search.fit(_principal(rows)))


def map_quality(rows: npt.NDArray[Any], places: npt.NDArray[Any]) -> dict[str, float]:
    """Return the KL divergence of a map at the scale that suits it best, and how many neighbours it keeps."""
    from sklearn.manifold._t_sne import _joint_probabilities

    reduced = torch.from_numpy(_principal(rows)).double()
    shown_at = torch.from_numpy(places).double()
    far, near = torch.cdist(reduced, reduced), torch.cdist(shown_at, shown_at)
    wanted = torch.from_numpy(_joint_probabilities(far.square().numpy(), PERPLEXITY, 0))
    pairs = torch.triu_indices(len(rows), len(rows), 1)
    given = near[pairs[0], pairs[1]].square()
    losses = []
    for scale in np.geomspace(10, 400, 25):  # a page's square has lost the scale that the divergence knows
        share = 1 / (1 + given * float(scale / given.max().sqrt()) ** 2)
        losses.append(float((wanted * (wanted / (share / (2 * share.sum()))).log()).nansum() * 2))
    hidden, shown = (one.fill_diagonal_(torch.inf).topk(NEAR, largest=False).indices for one in (far, near))
    kept = (hidden[:, :, None] == shown[:, None]).any(dim=2).double().mean()
    return {"divergence": min(losses), "neighbours kept": float(kept)}


def compare_probe(
    nodes: int,
    width: int,
    classes: int,
    splits: int,
    share: float,
    device: torch.device,
    reference: bool = True,
) -> dict[str, Any]:
    """Return seconds for all splits and strengths, and of the first split how far the losses differ."""
    rows, labels = (one.to(device) for one in planted(nodes, width, classes))
    draw = torch.Generator().manual_seed(1)
    train = (torch.rand(splits, nodes, generator=draw) < share).to(device)
    masks = train.t(), torch.zeros_like(train.t()), ~train.t()
    seconds, _ = timed(lambda: probe_candidates(rows, labels, *masks, classes=classes), device, 2)
    row: dict[str, Any] = {"nodes": nodes, "columns": width, "splits": splits, "training share": share}
    row["ours"] = {"seconds": seconds}
    if reference:
        own = torch.nonzero(train[0]).flatten()
        began = time.perf_counter()
        theirs = _scikit_learn_losses(standardise(rows.double())[own].cpu(), labels[own].cpu())
        row["scikit-learn"] = {"seconds": splits * (time.perf_counter() - began)}  # each split costs the same
        row["ours"] |= _losses_beside(rows, labels, own, classes, theirs)
    return row


def _losses_beside(
    rows: Tensor, labels: Tensor, own: Tensor, classes: int, theirs: list[float]
) -> dict[str, float]:
    """Return how far the losses of the first split are from scikit-learn's, and float32's from float64's."""
    scaled = standardise(rows.double())
    basis = project_onto(scaled @ scaled[own].mT, own)[own]
    targets = torch.nn.functional.one_hot(labels[own], classes).double()
    used = torch.ones(1, len(own), dtype=torch.bool, device=rows.device)
    losses: dict[Any, list[float]] = {}
    for precision in (torch.float32, torch.float64):
        found = fit_logistic(basis.to(precision), targets.to(precision), used, L2_GRID)[0]
        each = (Regressions(basis, targets, used, strength) for strength in L2_GRID)
        losses[precision] = [float(one(w[None].double())[0][0]) for one, w in zip(each, found, strict=True)]
    exact = np.array(losses[torch.float64])
    return {
        "float32 above float64": float((np.array(losses[torch.float32]) - exact).max()),
        "above scikit-learn": float((exact - theirs).max()),
        "below scikit-learn": float((theirs - exact).max()),
    }


def _scikit_learn_losses(rows: Tensor, labels: Tensor) -> list[float]:
    """Return the losses that `fit_logistic` makes small, of scikit-learn's solutions for each strength."""
    losses = []
    for strength in L2_GRID:
        model = LogisticRegression(C=1 / (strength * len(rows)), max_iter=LONG, tol=1e-6)
        model.fit(rows.numpy(), labels.numpy())
        weights = torch.from_numpy(model.coef_)
        logits = rows @ weights.T + torch.from_numpy(model.intercept_)
        pull = 0.5 * strength * float(weights.square().sum())
        losses.append(float(torch.nn.functional.cross_entropy(logits, labels)) + pull)
    return losses
