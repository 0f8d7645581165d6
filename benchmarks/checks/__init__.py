"""Reproduce the published figure of each system under its authors' own protocol."""
