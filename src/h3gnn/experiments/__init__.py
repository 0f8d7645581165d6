"""Whole experiments: a graph and settings in, results with their origin out."""
