"""`python -m omnigraph.server` is the `omnigraph-server` command."""

from omnigraph.server.main import main

if __name__ == "__main__":
    main()
