"""Tables of edges, features and labels, from files and DataFrames to a graph."""
