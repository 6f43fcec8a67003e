"""Requests to RunPod's API v2 about this pod and its Instant Cluster."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from urllib.parse import quote

import aiohttp
from msgspec import MsgspecError

from agent.base.proxy import proxy_for
from agent.base.text import without_controls
from agent.base.typed import decode
from agent.base.value import Value
from agent.platforms.rank_variables import own_pod
from agent.runpod.pod_stop import PodAnswer, PodState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.settings.model import Settings

_POD_REQUEST = 20.0  # For one request to RunPod's API.
_LONGEST_DETAIL = 300


class PodApi:
    """RunPod's API, asked about this pod and its cluster, with the user's key."""

    def __init__(self, settings: Settings, environ: Mapping[str, str]) -> None:
        self._url = ""
        self._headers = dict[str, str]()
        pod = own_pod(environ)
        key = settings.runpod_api_key
        if pod and key:
            self._url = f"{settings.runpod_api}/v2/pods/{pod}"
            self._headers["Authorization"] = f"Bearer {key.reveal()}"

    @property
    def can_be_asked(self) -> bool:
        """Return whether this is a pod of RunPod, and the user gave a key."""
        return bool(self._url)

    async def ask(self, action: str = "") -> PodAnswer:
        """Ask for an action, or for the pod's state; a failure is an answer without a code."""
        if action:
            return await self._request("POST", f"{self._url}/action", {"action": action})
        return await self._request("GET", self._url)

    async def delete_cluster(self, cluster: str) -> PodAnswer:
        """Ask to delete a cluster with all of its pods."""
        return await self._request("DELETE", self._cluster_url(cluster))

    async def ask_about_cluster(self, cluster: str) -> PodAnswer:
        """Ask for a cluster; the answer's code says whether the key may see it."""
        return await self._request("GET", self._cluster_url(cluster), is_pod=False)

    def _cluster_url(self, cluster: str) -> str:
        base = self._url.rpartition("/v2/pods/")[0]
        return f"{base}/v2/clusters/{quote(cluster, safe='')}"

    async def _request(
        self, method: str, url: str, body: dict[str, str] | None = None, *, is_pod: bool = True
    ) -> PodAnswer:
        timeout = aiohttp.ClientTimeout(total=_POD_REQUEST)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, headers=self._headers) as session,
                session.request(
                    method, url, json=body, proxy=proxy_for(url), allow_redirects=False
                ) as reply,
            ):
                if reply.status == 200 and not is_pod:
                    return PodAnswer(200)
                return _read_answer(reply.status, await reply.read())
        except (TimeoutError, asyncio.TimeoutError):  # two things until Python 3.11
            return PodAnswer(0, f"no answer within {_POD_REQUEST:g} s")
        except (aiohttp.ClientError, OSError) as error:
            return PodAnswer(0, str(error) or type(error).__name__)


class _Problem(Value):
    detail: str = ""


def _read_answer(code: int, body: bytes) -> PodAnswer:
    """Read an answer; a pod that the description does not allow is none."""
    try:
        if code == 200:
            return PodAnswer(code, pod=decode(body, PodState, strict=False))
        detail = decode(body, _Problem).detail if body else ""
    except (MsgspecError, RecursionError) as error:
        detail = f"an answer that is no pod: {error}"
    return PodAnswer(code, without_controls(detail)[:_LONGEST_DETAIL])
