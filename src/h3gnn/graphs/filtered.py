"""Chameleon and Squirrel without their duplicate nodes, in the style of PyG's own dataset classes."""

from __future__ import annotations

import numpy as np
import torch

from h3gnn.graphs.pyg import import_pyg

_pyg = import_pyg()


class FilteredWikipedia(_pyg.data.InMemoryDataset):  # type: ignore[misc,name-defined]
    """The filtered Wikipedia graphs of "A critical look at the evaluation of GNNs under heterophily".

    Platonov et al. (ICLR 2023) found that many nodes of Chameleon and Squirrel are copies of one another,
    which leaks test nodes into training, and published both without them, with ten splits. PyG has no
    class for them.

    Args:
        root: folder in which `name/raw/name.npz` lies.
        name: `chameleon_filtered` or `squirrel_filtered`.
    """

    def __init__(self, root: str, name: str) -> None:
        self.name = name
        super().__init__(root)
        self.load(self.processed_paths[0])

    @property
    def raw_dir(self) -> str:
        """Folder of the npz file."""
        return f"{self.root}/{self.name}/raw"

    @property
    def processed_dir(self) -> str:
        """Folder of PyG's own copy."""
        return f"{self.root}/{self.name}/processed"

    @property
    def raw_file_names(self) -> str:
        """The npz file."""
        return f"{self.name}.npz"

    @property
    def processed_file_names(self) -> str:
        """PyG's own copy."""
        return "data.pt"

    def process(self) -> None:
        """Turn the npz file, which holds each undirected edge once, into a `Data`."""
        with np.load(self.raw_paths[0], allow_pickle=False) as raw:
            arrays = {name: torch.from_numpy(raw[name]) for name in raw.files}
        data = _pyg.data.Data(
            x=arrays["node_features"],
            y=arrays["node_labels"],
            edge_index=_pyg.utils.to_undirected(
                arrays["edges"].t().contiguous(), num_nodes=len(arrays["node_labels"])
            ),
            train_mask=arrays["train_masks"].t().contiguous(),  # [nodes, splits]
            val_mask=arrays["val_masks"].t().contiguous(),
            test_mask=arrays["test_masks"].t().contiguous(),
        )
        self.save([data], self.processed_paths[0])
