"""The one door: a change of the graph is a plan, `publish` carries it out, and `recover` finishes or undoes it."""
