"""The calls of upkeep, which no server does for its clients: each says what to do instead."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, Never, ParamSpec

from omnigraph.api.protocol import GraphAPI
from omnigraph.client.asking import not_served
from omnigraph.client.steps import Steps

P = ParamSpec("P")


def _done_there(
    method: Callable[Concatenate[GraphAPI, P], object],
) -> Callable[Concatenate[UpkeepCalls, P], Steps[Never]]:
    """Refuse a method of a graph in storage, with its parameters."""

    @functools.wraps(method)
    def refuse(_self: UpkeepCalls, /, *_args: P.args, **_kwargs: P.kwargs) -> Steps[Never]:
        raise not_served(method.__name__)

    refuse.__doc__ = "Not served: run it where the storage is."
    return refuse


class UpkeepCalls:
    """What needs the storage itself."""

    embed = _done_there(GraphAPI.embed)
    ensure_indices = _done_there(GraphAPI.ensure_indices)
    optimize = _done_there(GraphAPI.optimize)
    cleanup = _done_there(GraphAPI.cleanup)
    repair = _done_there(GraphAPI.repair)
    doctor = _done_there(GraphAPI.doctor)
