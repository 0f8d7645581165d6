"""The joint structural encoder as plain modules."""

from h3gnn.encoder.features import FeatureMatrix
from h3gnn.encoder.joint import JointEncoder
from h3gnn.encoder.stack import EncoderStack
from h3gnn.encoder.support import Support, build_support

__all__ = ["EncoderStack", "FeatureMatrix", "JointEncoder", "Support", "build_support"]
