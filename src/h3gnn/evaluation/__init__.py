"""Embeddings and labels in, results out."""
