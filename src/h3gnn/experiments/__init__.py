"""Experiments: methods, comparisons, searches and the data of a report."""
