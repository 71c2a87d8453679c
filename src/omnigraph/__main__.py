"""`python -m omnigraph` is the `omnigraph` command."""

from omnigraph.cli import main

if __name__ == "__main__":
    main()
