"""What H3GNN is compared with: other ways from a graph to embeddings, and classifiers that see labels."""
