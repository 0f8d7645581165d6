"""VGAE (Kipf and Welling, 2016): GAE with a distribution for each node, held near the normal one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from h3gnn.baselines import gae
from h3gnn.baselines.gae import GAE, ConvolutionalEncoder


class VGAE(GAE):
    r"""The encoder gives a mean and a spread, a draw of them is decoded, and the embedding is the mean.

    .. math:: z_v = \mu_v + \sigma_v \epsilon, \quad \mathcal L = \mathcal L_{\text{GAE}}(Z)
        + \tfrac1{n^2} \textstyle\sum_v
        \mathrm{KL}\big(\mathcal N(\mu_v, \sigma_v^2) \,\|\, \mathcal N(0, 1)\big)

    Mean and spread share their first layer. The draw and the divergence are those of PyG's `VGAE`.
    """

    def make_coder(self, features: int) -> Any:
        """Return an encoder of two outputs, and the decoder."""
        from torch_geometric import nn as pyg

        width = self.settings.width
        return pyg.VGAE(ConvolutionalEncoder(features, self.settings.hidden, (width, width)))

    def loss(self, epoch: int) -> Tensor:
        """Tell the edges from all other pairs, with distributions near the normal one."""
        loss: Tensor = super().loss(epoch) + self.coder.kl_loss() / self.nodes
        return loss


SYSTEM = replace(gae.SYSTEM, name="vgae", title="VGAE", estimator="VGAE", kind=VGAE)
