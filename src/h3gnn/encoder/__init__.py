"""The joint structural encoder, as plain modules."""

from h3gnn.encoder.joint import JointEncoder
from h3gnn.encoder.propagation import FeatureMatrix
from h3gnn.encoder.support import Support, build_support
from h3gnn.encoder.tokens import Projected

__all__ = ["FeatureMatrix", "JointEncoder", "Projected", "Support", "build_support"]
