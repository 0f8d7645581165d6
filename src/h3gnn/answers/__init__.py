"""What people come for, once there are embeddings: classes, likenesses, oddities, links, new nodes, files.

Arrays and graphs in, answers out, under the nodes' own ids; nothing here sees a model's weights.
"""
