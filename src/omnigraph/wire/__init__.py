"""What travels between a server and its clients, and what the command line prints as JSON: one form for both ways."""
