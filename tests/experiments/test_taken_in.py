from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import torch

from h3gnn.answers.links import reduced_features
from h3gnn.baselines.layers import scaled_features as of_other_systems
from h3gnn.estimator import H3GNN
from h3gnn.experiments.spaces import scaled_features
from h3gnn.graphs.graph import Graph
from h3gnn.tables.plan import encode_table


def test_columns_that_were_encoded_are_not_scaled_again(small_mixed: Graph) -> None:
    """`fit` leaves an encoded table as it is; a search, other systems and pairs take in the same."""
    amount = np.random.default_rng(0).lognormal(3, 2, small_mixed.num_nodes)
    values, plan, _ = encode_table(pd.DataFrame({"amount": amount, "kind": ["a", "b"] * (len(amount) // 2)}))
    graph = replace(small_mixed, features=torch.as_tensor(values).float(), plan=plan)
    cpu = torch.device("cpu")
    unchanged = graph.features
    assert torch.allclose(torch.as_tensor(of_other_systems(graph, cpu).matrix), unchanged)
    taken = scaled_features(graph, H3GNN().get_settings(), cpu)
    assert torch.allclose(taken.dense, unchanged)
    centred = unchanged - unchanged.mean(dim=0)
    assert np.allclose(reduced_features(graph, graph.num_features), centred)
