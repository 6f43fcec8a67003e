"""Calls of GCS and of the job API without Ray's own clients.

To import those takes 0.5 s of CPU time, while Ray boots on the same cores. GCS is called by gRPC,
with its messages read from their wire format, and the job API by HTTP. `connect` chooses: where a
cluster needs more than that, such as a proxy or another kind of authentication, it returns Ray's
own clients (ray_calls.py).
"""

from __future__ import annotations

import http.client
import json
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from agent.base import times
from agent.bridge.ray_calls import RESOURCES, Gcs, Jobs, job_report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_NODES = "ray.rpc.NodeInfoGcsService/GetAllNodeInfo"
_VALUE = "ray.rpc.InternalKVGcsService/InternalKVGet"
_PROXIES = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
_OPTIONS = (
    ("grpc.enable_http_proxy", 0),  # as Ray does
    ("grpc.use_local_subchannel_pool", 1),  # a new channel does not wait for a failed one's pause
    ("grpc.max_receive_message_length", -1),
)
_OK = 200


def connect(gcs: str, dashboard: str) -> tuple[Gcs, Callable[[], Jobs]]:
    """Return what asks GCS, and what connects to the job API."""
    if needs_ray_clients(dashboard, os.environ):
        return Gcs(gcs), lambda: Jobs(dashboard)
    return GcsByGrpc(gcs), lambda: JobsByHttp(dashboard)


def needs_ray_clients(dashboard: str, environ: Mapping[str, str]) -> bool:
    """Return whether a cluster needs what only Ray's own clients have.

    That is a dashboard with TLS, a proxy, or a token from elsewhere than RAY_AUTH_TOKEN.
    """
    mode = environ.get("RAY_AUTH_MODE", "").lower()
    has_known_mode = mode == "disabled" or (mode == "token" and "RAY_AUTH_TOKEN" in environ)
    has_proxy = any(environ.get(name) for name in _PROXIES)
    return not has_known_mode or has_proxy or urlsplit(dashboard).scheme != "http"


def _token_header() -> dict[str, str]:
    """Return the header that Ray's token mode requires, by HTTP and by gRPC alike."""
    if os.environ.get("RAY_AUTH_MODE", "").lower() != "token":
        return {}
    return {"authorization": f"Bearer {os.environ['RAY_AUTH_TOKEN']}"}


# --- GCS ------------------------------------------------------------------------------------------


class GcsByGrpc(Gcs):
    """Nodes and jobs from GCS by gRPC: a private API. Tried on Ray 2.60, `nodes` also on 2.40."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._channel: Any = None
        self._last_reply = b""
        self._last_nodes: list[dict[str, object]] = []
        self._lacks_method = False  # whether this Ray has other methods: its own client knows them

    def load(self) -> None:
        """Import gRPC."""
        import grpc  # type: ignore[import-untyped]  # noqa: F401, PLC0415 - Ray's Python has it

    def nodes(self) -> list[dict[str, object]]:
        """Return all nodes, dead ones included, with the fields of RayNode."""
        reply = self._ask(_NODES, b"")
        if reply is None:
            return super().nodes()
        if reply != self._last_reply:  # with a thousand nodes they are long to read
            self._last_nodes = [read_node(node) for node in values(reply, 2)]
            self._last_reply = reply
        return self._last_nodes

    def job(self, job_id: str) -> dict[str, object] | None:
        """Return the state of a job, which its supervisor writes; None if it has none."""
        key = f"_ray_internal_job_info_{job_id}".encode()
        reply = self._ask(_VALUE, field(1, key) + field(2, b"job"))
        if reply is None:
            return super().job(job_id)
        state = b"".join(values(reply, 2))
        return job_report(json.loads(state)) if state else None

    def _ask(self, method: str, request: bytes) -> bytes | None:
        """Return a method's reply; None if this Ray has no such method. Raise what else is wrong.

        A call that fails closes the connection: a GCS that was restarted is another one.
        """
        import grpc  # noqa: PLC0415 - see `load`

        if self._lacks_method:
            return None
        channel = self._channel or _open_channel(self._address)
        self._channel = None
        headers = tuple(_token_header().items())
        try:
            call = channel.unary_unary(f"/{method}")
            reply: bytes = call(request, timeout=times.GCS_CALL, metadata=headers)
        except grpc.RpcError as error:
            channel.close()
            self._lacks_method = error.code() is grpc.StatusCode.UNIMPLEMENTED
            if self._lacks_method:
                return None
            why = f"GCS at {self._address}: {error.code().name}: {error.details()}"
            raise ConnectionError(why) from None
        self._channel = channel
        return reply


def _open_channel(address: str) -> Any:  # noqa: ANN401 - gRPC's own type
    """Return a connection to GCS, with TLS by Ray's variables."""
    import grpc  # noqa: PLC0415 - see `GcsByGrpc.load`

    if os.environ.get("RAY_USE_TLS", "").lower() not in {"1", "true"}:
        return grpc.insecure_channel(address, options=_OPTIONS)
    files = [os.environ[f"RAY_TLS_{name}"] for name in ("CA_CERT", "SERVER_KEY", "SERVER_CERT")]
    credentials = grpc.ssl_channel_credentials(*(Path(file).read_bytes() for file in files))
    return grpc.secure_channel(address, credentials, options=_OPTIONS)


def read_node(node: bytes) -> dict[str, object]:
    """Return a node with the fields of RayNode, from a message `GcsNodeInfo`."""
    by_number = dict(fields(node))
    total: dict[str, float] = {}
    for entry in values(node, 11):
        resource = dict(fields(entry))
        total[str(resource[1], "utf-8")] = struct.unpack("<d", resource.get(2, bytes(8)))[0]
    return {
        "node_id": by_number.get(1, b"").hex(),
        "ip": by_number.get(2, b"").decode(),
        "port": by_number.get(5, 0),
        "alive": by_number.get(7, 0) == 0,
        "is_head": bool(by_number.get(25, 0)),
        **{ours: total.get(theirs, 0.0) for ours, theirs in RESOURCES.items()},
    }


def values(message: bytes, number: int) -> list[Any]:
    """Return the values of one field of a message, which may be repeated."""
    return [value for found, value in fields(message) if found == number]


def fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield numbers and values of a protobuf message's fields: integers, and all else as bytes."""
    at = 0
    while at < len(message):
        key, at = _number(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _number(message, at)
            yield key >> 3, value
            continue
        if kind == 2:
            size, at = _number(message, at)
        elif kind in {1, 5}:
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"a field of protobuf's kind {kind}")
        yield key >> 3, message[at : at + size]
        at += size


def field(number: int, value: bytes) -> bytes:
    """Return a field of bytes of a protobuf message."""
    size = len(value)
    length = bytearray()
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    return bytes([number << 3 | 2, *length, size]) + value


def _number(message: bytes, at: int) -> tuple[int, int]:
    """Return the integer at a place, and where it ends."""
    number = shift = 0
    while True:
        byte = message[at]
        number |= (byte & 127) << shift
        at += 1
        shift += 7
        if byte < 128:
            return number, at


# --- jobs -----------------------------------------------------------------------------------------


class JobsByHttp(Jobs):
    """Ray's job API by HTTP, as its own client calls it. Tried on Ray 2.40 to 2.60."""

    def _submit(self, job: Mapping[str, Any]) -> None:
        # What a runtime_env names may have to be packed and uploaded: Ray's client does that.
        if job["runtime_env"]:
            super()._submit(job)
            return
        self._ask("POST", "", {"entrypoint": job["entrypoint"], "submission_id": job["id"]})

    def _list(self) -> list[Mapping[str, Any]]:
        return list(self._ask("GET", ""))

    def _info(self, job_id: str) -> Mapping[str, Any]:
        return dict(self._ask("GET", quote(job_id, safe="")))

    def stop(self, job_id: str) -> None:
        """Ask Ray to stop the job."""
        self._ask("POST", f"{quote(job_id, safe='')}/stop")

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:  # noqa: ANN401 - JSON
        """Return the reply to one request; raise what is wrong as Ray's client does."""
        url = urlsplit(self._dashboard)
        connection = http.client.HTTPConnection(url.hostname or "", url.port)
        # Before 2.52 the dashboard fails with 500 at a POST that names no agent.
        headers = {"User-Agent": "pod-agent", "Content-Type": "application/json", **_token_header()}
        data = None if body is None else json.dumps(body)
        try:
            connection.request(method, f"/api/jobs/{path}", data, headers)
            reply = connection.getresponse()
            text = reply.read().decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            why = f"Failed to connect to Ray at address: {self._dashboard} ({error})."
            raise ConnectionError(why) from None
        finally:
            connection.close()
        if reply.status != _OK:
            raise RuntimeError(f"Request failed with status code {reply.status}: {text}.")
        try:
            return json.loads(text)
        except ValueError:
            raise RuntimeError(f"Ray's dashboard did not reply with JSON: {text[:200]}") from None
