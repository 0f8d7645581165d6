"""Scores of embeddings: probes, clusterings, metrics and protocols; arrays only, never weights."""

MAX_CLUSTERS = 12
"""The largest number of clusters that the silhouette considers; defined here because commands show it."""
