r"""How much memory a training takes, and the chunk that fits into a budget.

Full-graph training keeps some numbers per node and per edge whatever the chunk, and the activations of the
fusion block for one chunk of nodes. With C channels, K hops, S = 2 + K tokens, first-layer width W (of the
linear token, the MLP and the hops together), MLP width H, d features, h heads and M models, in float32:

.. math::
    \text{node} &= 4M\,(6W + 5SC + 2H + 3K(K+1)C/2) + 4d \\
    \text{edge} &= 60 + 40M \\
    \text{chunk node} &= 4M\,(40SC + 8hS^2) \\
    \text{chunk} &= (\text{budget} - 0.4\,\text{GB} - N\,\text{node} - E\,\text{edge})\ /\ \text{chunk node}

N nodes, E entries of the support (twice the edges, when messages flow both ways). The counts are upper bounds
of what autograd keeps; tests compare them with the measured peak.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from h3gnn.errors import InputError

LIBRARIES = 400 * 10**6
"""What Python and torch take before the first tensor, on a CPU."""
SMALLEST_CHUNK = 64


@dataclass(frozen=True)
class Size:
    """What the memory of a training depends on."""

    nodes: int
    entries: int
    features: int
    channels: int
    hops: int
    first_width: int
    mlp_width: int
    heads: int
    models: int

    @property
    def tokens(self) -> int:
        """S."""
        return 2 + self.hops

    def per_node(self) -> int:
        """Bytes per node, whatever the chunk."""
        hidden = 3 * self.hops * (self.hops + 1) // 2 * self.channels
        kept = 6 * self.first_width + 5 * self.tokens * self.channels + 2 * self.mlp_width + hidden
        return 4 * self.models * kept + 4 * self.features

    def per_entry(self) -> int:
        """Bytes per entry of the support."""
        return 60 + 40 * self.models

    def per_chunk_node(self) -> int:
        """Bytes per node of a chunk."""
        return 4 * self.models * (40 * self.tokens * self.channels + 8 * self.heads * self.tokens**2)

    def outside_chunk(self) -> int:
        """Bytes of a full-graph training before the first chunk."""
        return self.nodes * self.per_node() + self.entries * self.per_entry()


def pick_chunk(budget: int, size: Size, largest: int) -> int:
    """Return how many nodes the fusion block may see at a time in full-graph training.

    Raises:
        InputError: where the rest alone does not fit, with what it takes and what to do.
    """
    chunk = _affordable_chunk(budget, size)
    if chunk < min(SMALLEST_CHUNK, size.nodes):
        needed = LIBRARIES + size.outside_chunk() + SMALLEST_CHUNK * size.per_chunk_node()
        raise InputError(
            f"memory={budget / 1e9:.3g}GB is not enough for training on the full graph, which takes about "
            f"{needed / 1e9:.3g}GB; give more, or train in mini-batches (batch_size=1024, --batch-size 1024)"
        )
    return int(min(chunk, largest))


def pick_group(budget: int, size: Size, largest: int) -> tuple[int, int]:
    """Return how many of the models to train at once, and how many nodes the fusion block may then see.

    Raises:
        InputError: where a single model does not fit.
    """
    for models in range(size.models, 1, -1):
        together = replace(size, models=models)
        if _affordable_chunk(budget, together) >= min(SMALLEST_CHUNK, size.nodes):
            return models, pick_chunk(budget, together, max(1, largest // models))
    return 1, pick_chunk(budget, replace(size, models=1), largest)


def _affordable_chunk(budget: int, size: Size) -> int:
    return (budget - LIBRARIES - size.outside_chunk()) // size.per_chunk_node()
