"""Connections to a head that say nothing for seconds: the kernel tells when it is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import aiohttp

from agent.control.sockets import DEAD_WITHIN
from agent.runtime.keepalive import notice_a_dead_peer

if TYPE_CHECKING:
    from aiohttp.connector import Connection


class KeptConnector(aiohttp.TCPConnector):
    """Has the kernel look after each connection that is made.

    From 3.12 on aiohttp lets its user make the sockets, but images have older ones.
    """

    async def connect(self, *args: Any, **kwargs: Any) -> Connection:  # noqa: ANN401 - passed on
        """Make a connection, or take one that is there."""
        connection = await super().connect(*args, **kwargs)
        transport = connection.transport
        made = None if transport is None else transport.get_extra_info("socket")
        if made is not None:
            notice_a_dead_peer(made, DEAD_WITHIN)
        return connection
