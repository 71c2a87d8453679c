"""How a scenario says that this machine cannot run it."""


class SkippedError(Exception):
    """What is missing here."""
