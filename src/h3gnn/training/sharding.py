"""Sharding of feature rows: process r of P holds one range of nodes and serves it to the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from h3gnn.encoder.encode import GraphRows
from h3gnn.encoder.sparse import csr_tensor
from h3gnn.training.batches import rows_in_memory
from h3gnn.training.distributed import ProcessGroup, Ranks


class RowRequest:
    """One exchange of rows: every process asks the owners for the rows it needs, at the same time.

    Args:
        group: the processes.
        nodes: the nodes whose rows this process needs, in any order.
        count: number of nodes of the graph.

    Attributes:
        inverse: position of each requested node among the received rows, which ascend by node.
        requested: rows that the processes request from this one, one requester after the other, counted from
            the start of its shard.
        send_counts: number of rows to send to each process.
        receive_counts: number of rows to receive from each process.
    """

    def __init__(self, group: ProcessGroup, nodes: Tensor, count: int) -> None:
        self.group = group
        nodes, order = nodes.sort()
        self.inverse = torch.empty_like(order).scatter_(0, order, torch.arange(len(nodes)).to(nodes))
        shards = [group.shard(count, owner) for owner in range(group.size)]
        starts = torch.tensor([shard.start for shard in shards], device=nodes.device)
        ends = torch.tensor([shard.stop for shard in shards], device=nodes.device)
        counts = torch.searchsorted(nodes, ends) - torch.searchsorted(nodes, starts)
        self.receive_counts: list[int] = counts.tolist()
        once = [1] * len(shards)
        self.send_counts: list[int] = group.all_to_all(counts, once, once).tolist()
        index_type = torch.int32 if max(map(len, shards)) < 2**31 else torch.int64
        local = (nodes - torch.repeat_interleave(starts, counts)).to(index_type)
        self.requested = group.all_to_all(local, self.receive_counts, self.send_counts).long()

    def exchange(self, rows: Tensor) -> Tensor:
        """Send `rows`, one for each of `requested`; return the rows of the requested nodes, ascending."""
        if rows.layout != torch.sparse_csr:
            return self.group.all_to_all(rows, self.send_counts, self.receive_counts)
        sent = rows.crow_indices().diff()  # row lengths first, then columns and values
        received = self.group.all_to_all(sent, self.send_counts, self.receive_counts)
        to = [int(lengths.sum()) for lengths in torch.split(sent, self.send_counts)]
        of = [int(lengths.sum()) for lengths in torch.split(received, self.receive_counts)]
        cols, values = (self.group.all_to_all(part, to, of) for part in (rows.col_indices(), rows.values()))
        crow = torch.cat([received.new_zeros(1), received.cumsum(0)])
        return csr_tensor(crow, cols, values, (len(received), rows.shape[1]))


def shard_rows(graph: GraphRows, ranks: Ranks, *, in_memory: bool) -> GraphRows:
    """Return a graph whose feature rows come from the processes that hold them.

    All processes read a batch at the same time. Each reads its own shard only.

    Args:
        graph: as a single process reads it.
        ranks: the processes; a single one reads everything.
        in_memory: copy this process's shard now, so that the full matrix can be freed. Rows in files stay
            there.
    """
    if ranks.size == 1:
        return graph
    group, support = cast(ProcessGroup, ranks).prefetching, graph.support
    own = ranks.shard(support.nodes)
    read_own: Callable[[Tensor], Tensor] = lambda rows: graph.read(rows + own.start)  # noqa: E731
    if in_memory:
        read_own = rows_in_memory(graph.read(torch.arange(own.start, own.stop)), support).read

    def read(nodes: Tensor) -> Tensor:
        request = RowRequest(group, nodes, support.nodes)
        received = request.exchange(read_own(request.requested))
        return rows_in_memory(received, support).read(request.inverse)

    return GraphRows(read, support, graph.columns)
