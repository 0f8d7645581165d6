"""Rows of features that several processes have divided: each reads its own, and asks for the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from h3gnn.encoder.encode import GraphRows
from h3gnn.encoder.sparse import csr_tensor
from h3gnn.training.batches import rows_in_memory
from h3gnn.training.distributed import ProcessGroup, Ranks
from h3gnn.training.exchange import AskedOfOthers


def divided_rows(graph: GraphRows, ranks: Ranks, *, in_memory: bool) -> GraphRows:
    """Return a graph whose rows come from the processes that hold them.

    Every process reads a batch at the same time; what one reads itself are its own rows alone.

    Args:
        graph: as one process alone would read it.
        ranks: the processes; one alone reads everything.
        in_memory: the rows lie in memory, where this process's are now copied, so that the others can go.
            In files they stay there.
    """
    if ranks.size == 1:
        return graph
    group, support = cast(ProcessGroup, ranks).aside, graph.support
    own = ranks.part(support.nodes)
    if in_memory:
        kept = rows_in_memory(graph.read(torch.arange(own.start, own.stop)), support).read
    else:
        kept = _from(own.start, graph.read)

    def read(nodes: Tensor) -> Tensor:
        asked = group.ask(nodes, support.nodes)
        rows = kept(asked.wanted)
        got = _sparse_answer(asked, rows) if rows.layout == torch.sparse_csr else asked.answer(rows)
        return rows_in_memory(got, support).read(asked.back)

    return GraphRows(read, support, graph.columns)


def _from(start: int, read: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda places: read(places + start)


def _sparse_answer(asked: AskedOfOthers, rows: Tensor) -> Tensor:
    """Exchange compressed sparse rows: their lengths first, then columns and values."""
    lengths = rows.crow_indices().diff()
    heard = asked.answer(lengths)
    to = [int(part.sum()) for part in torch.split(lengths, asked.to)]
    of = [int(part.sum()) for part in torch.split(heard, asked.of)]
    cols, values = (asked.swap(part, to, of) for part in (rows.col_indices(), rows.values()))
    pointers = torch.cat([heard.new_zeros(1), heard.cumsum(0)])
    return csr_tensor(pointers, cols, values, (len(heard), rows.shape[1]))
