"""The HTTP server: the same graph for many clients. It holds no logic of its own."""
