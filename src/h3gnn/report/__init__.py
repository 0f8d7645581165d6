"""Results and embeddings in; tables and pictures out."""
