"""The errors that speak to the person: what was wrong, where, and what to do."""


class InputError(ValueError):
    """Something that the user gave cannot be used; the message is one sentence that names the place."""


class GraphError(InputError):
    """The nodes, edges, features or labels do not make a graph."""


class ModelFolderError(InputError):
    """A saved model is missing, damaged, or was not written by h3gnn."""


class CheckpointError(InputError):
    """A checkpoint is missing, damaged, or was not written by this version of h3gnn."""


class RankLostError(RuntimeError):
    """Another process of a distributed job is gone; empty where a survivor has already said so."""
