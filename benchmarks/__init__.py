"""Speed and memory, measured against a plain reference in the same run."""
