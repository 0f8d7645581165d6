"""MLP (Rumelhart et al., 1986): two layers on a node's own features."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from h3gnn.baselines.classifiers import Classifier, ClassifierSettings
from h3gnn.baselines.stacks import Noise
from h3gnn.baselines.systems import System


class MLP(Classifier):
    """Two layers that see a node's own features alone."""

    def build(self) -> None:
        """Add two layers."""
        self.weights.glorot("first", self.in_channels, self.width)
        self.weights.zeros("first bias", self.width)
        self.weights.glorot("second", self.width, self.ground.classes)
        self.weights.zeros("second bias", self.ground.classes)

    def spread(self, x: Tensor) -> Tensor:
        """Mix neighbours after each linear map; here, not at all."""
        return x

    def logits(self, noise: Noise | None) -> Tensor:
        """Return `P relu(P X W₁ + b₁) W₂ + b₂` with P = 1."""
        first = self.ground.features.product(self.weights["first"], noise)
        hidden = functional.relu(self.spread(first) + self.weights["first bias"])
        hidden = self.dropped(hidden, noise)
        return self.spread(self.dense(hidden, "second")) + self.weights["second bias"]


SYSTEM = System(
    name="mlp",
    title="MLP",
    estimator="MLP",
    group="supervised",
    paper="Rumelhart, Hinton and Williams: Learning representations by back-propagating errors. Nature",
    year=1986,
    sees=("features", "labels"),
    kind=MLP,
    settings=ClassifierSettings(),
    cost="one product with the features per epoch",
)
