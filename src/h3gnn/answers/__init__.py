"""Applications of embeddings: prediction, similarity search, anomalies, link prediction, new nodes, export.

Functions take arrays and graphs and return tables under the nodes' own ids; none sees a model's weights.
"""
