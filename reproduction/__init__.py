"""The paper's tables and figures, made again: what to run, how it is kept, and what is written about it."""
