"""Graphs in memory-mapped files, for graphs that do not fit in memory."""
