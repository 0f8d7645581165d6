"""A graph comes in: checked once, then trusted."""
