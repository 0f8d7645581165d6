"""`python -m h3gnn` is the command line."""

from h3gnn.cli import main

if __name__ == "__main__":
    main()
