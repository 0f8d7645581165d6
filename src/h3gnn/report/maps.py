"""Pictures of embeddings: t-SNE maps, coloured by class."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from torch import Tensor

from h3gnn.storage import write_atomically

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442", "#999999")
"""Okabe and Ito's palette, which colour-blind readers can tell apart."""


def draw_maps(
    path: Path,
    embeddings: Mapping[str, npt.NDArray[np.float32]],
    labels: Tensor | None,
    class_names: Sequence[str],
    *,
    seed: int = 0,
) -> None:
    """Draw one t-SNE map for each embedding, side by side, in a PNG, PDF or SVG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * len(embeddings), 5.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(embeddings), squeeze=False)[0]
    for axis, (title, embedding) in zip(axes, embeddings.items(), strict=True):
        places = tsne(embedding, seed=seed)
        for label, name, chosen in _groups(labels, class_names, len(places)):
            colour = COLOURS[label % len(COLOURS)]
            axis.scatter(*places[chosen].T, s=9, color=colour, label=name, linewidths=0, alpha=0.85)
        axis.set_title(title)
        axis.set_xticks([])
        axis.set_yticks([])
        axis.set_box_aspect(1)
        for side in axis.spines.values():
            side.set_color("#cccccc")
    handles, names = axes[0].get_legend_handles_labels()
    if len(names) > 1:
        figure.legend(handles, names, loc="outside lower center", ncols=3, frameon=False, markerscale=2)
    buffer = io.BytesIO()
    figure.savefig(buffer, format=path.suffix.lower().lstrip("."), dpi=150)
    write_atomically(path, buffer.getvalue())


def tsne(embedding: npt.NDArray[np.float32], *, seed: int = 0) -> npt.NDArray[np.float32]:
    """Place nodes in the plane by t-SNE, after PCA to at most 50 dimensions."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    nodes, width = embedding.shape
    reduced = PCA(min(50, nodes, width), random_state=seed).fit_transform(embedding)
    perplexity = min(30.0, max(1.0, (nodes - 1) / 3))
    places: npt.NDArray[np.float32] = TSNE(perplexity=perplexity, random_state=seed).fit_transform(reduced)
    return places


def _groups(
    labels: Tensor | None, class_names: Sequence[str], nodes: int
) -> list[tuple[int, str, npt.NDArray[np.bool_]]]:
    if labels is None:
        return [(0, "nodes", np.ones(nodes, dtype=bool))]
    classes = labels.numpy()
    return [(label, name, classes == label) for label, name in enumerate(class_names)]
