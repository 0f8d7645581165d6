"""Embeddings and labels in, results out."""

MAX_CLUSTERS = 12
"""Where the silhouette picks the number of clusters, it picks from 2 to this; here since commands name it."""
