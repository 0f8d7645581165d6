"""Whole experiments: a graph and settings in, results with their origin out."""

LARGEST_STACK = 10_000
"""A search trains at most so many models as one program; here since commands name it."""
