"""How thoroughly hypothesis searches: a lean, repeatable run by default, a long random one on request."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

# The size of a generated text varies a lot, and so does the time it takes.
settings.register_profile(
    "lean",
    max_examples=60,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=set(Phase) - {Phase.explain},
)
settings.register_profile("soak", settings.get_profile("lean"), max_examples=5_000, derandomize=False)
settings.load_profile(os.environ.get("OMNIGRAPH_HYPOTHESIS_PROFILE", "lean"))
