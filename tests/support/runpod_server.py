"""A server for RunPod's API of pods and clusters, made from its published description.

It refuses what the description refuses, and checks each of its own replies against it. By hand:
`python tests/support/runpod_server.py PORT KEY POD... [--tls CERTIFICATE KEY]` prints each request.
POD=CLUSTER is a member of an Instant Cluster.
"""

from __future__ import annotations

import json
import re
import ssl
import sys
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it ships no types

DESCRIPTION: dict[str, Any] = json.loads(
    Path(__file__).with_name("runpod_v2_pods.json").read_text()
)
_CLUSTERS = json.loads(Path(__file__).with_name("runpod_v2_clusters.json").read_text())
DESCRIPTION["paths"] |= _CLUSTERS["paths"]
for _kind, _parts in _CLUSTERS["components"].items():
    DESCRIPTION["components"].setdefault(_kind, {}).update(_parts)
ALLOWED = {
    "PROVISIONING": ["stop", "terminate"],
    "STARTING": ["stop", "terminate"],
    "EXITED": ["start", "terminate"],
    "ERROR": ["start", "terminate"],
    "RUNNING": ["stop", "restart", "terminate"],
    "TERMINATED": [],
}
"""The actions that each status allows."""
AFTER = {"stop": "EXITED", "start": "STARTING", "restart": "RUNNING", "terminate": "TERMINATED"}


def resolved(schema: Any) -> Any:  # noqa: ANN401 - whatever JSON has
    """Replace each reference by its target."""
    if isinstance(schema, list):
        return [resolved(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        found: Any = DESCRIPTION
        for name in schema["$ref"].removeprefix("#/").split("/"):
            found = found[name]
        return resolved(found)
    return {name: resolved(one) for name, one in schema.items()}


def flat(schema: dict[str, Any]) -> dict[str, Any]:
    """Merge the parts of an object's schema, at any depth."""
    parts = [flat(one) for one in schema.get("allOf", ())]
    properties = dict(schema.get("properties", {}))
    for part in parts:
        properties |= part["properties"]
    required = [*schema.get("required", ()), *(name for part in parts for name in part["required"])]
    return {"properties": properties, "required": required}


def sample(schema: dict[str, Any]) -> Any:  # noqa: ANN401 - whatever JSON has
    """Make the smallest value of a schema: its required properties only."""
    for one in ("enum", "oneOf", "anyOf"):
        if one in schema:
            first = schema[one][0]
            return first if one == "enum" else sample(first)
    if "allOf" in schema:
        merged = flat(schema)
        return sample(merged if merged["properties"] else schema["allOf"][0])
    kind = schema.get("type", "object")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        properties = schema.get("properties", {})
        return {name: sample(properties[name]) for name in schema.get("required", ())}
    if schema.get("format") == "date-time":
        return "2026-06-01T12:00:00Z"
    number = max(1, schema.get("minimum", 1))
    return {"string": "text", "array": [], "integer": number, "number": 1.0, "boolean": False}[kind]


@dataclass
class RunPodServer:
    """Pods by ID, one key, and the requests so far."""

    key: str
    pods: dict[str, dict[str, Any]]
    requests: list[tuple[str, str, str, int]] = field(default_factory=list)
    """Method, pod, action and the code of the reply."""
    faults: dict[str, list[tuple[int, dict[str, str]]]] = field(default_factory=dict)
    """By method: codes and headers of the next replies; 0 breaks the connection."""
    secrets: dict[str, str] = field(default_factory=dict)
    """The secrets of the account, by name."""
    rights: bool = True
    """Whether the key has the permission to act."""
    url: str = ""
    """The base URL of the server."""

    def pod(self, pod: str, **changes: Any) -> dict[str, Any]:  # noqa: ANN401 - any property
        """Return a pod in the schema's form."""
        schema = resolved(DESCRIPTION["components"]["schemas"]["Pod"])
        made = {**sample(schema), "id": pod, "status": "RUNNING", "cost": 0.44, **changes}
        return {**made, "actions": changes.get("actions", ALLOWED[made["status"]])}

    def reply_about_cluster(self, method: str, cluster: str) -> tuple[int, Any]:
        """Return status code and content of the reply about a cluster, whose pods end with it."""
        members = [
            pod
            for pod in self.pods.values()
            if pod.get("cluster", {}).get("id") == cluster and pod.get("status") != "TERMINATED"
        ]
        if not members:
            return 404, "cluster not found"
        if method == "GET":
            return 200, {
                **sample(resolved(DESCRIPTION["components"]["schemas"]["Cluster"])),
                "id": cluster,
            }
        if not self.rights:
            return 403, "the key lacks the right"
        for pod in members:
            pod["status"] = "TERMINATED"
        return 204, None

    def reply_to_graphql(self, key: str, body: bytes) -> tuple[int, Any]:
        """Return status code and content of the reply to a query about secrets."""
        if key != f"Bearer {self.key}":
            return 401, "no valid key"
        asked = json.loads(body)
        variables = asked["variables"]
        if not asked["query"].startswith("mutation"):
            assert "myself { secrets { name } }" in asked["query"]
            return 200, {"data": {"myself": {"secrets": [{"name": name} for name in self.secrets]}}}
        assert "secretCreate(input: {name: $name, value: $value})" in asked["query"]
        if not self.rights:
            return 200, {"errors": [{"message": "the key lacks the right"}], "data": None}
        self.secrets[variables["name"]] = variables["value"]
        return 200, {"data": {"secretCreate": {"id": "secret-id"}}}

    def reply(  # noqa: PLR0911 - one refusal, one return
        self, method: str, path: str, key: str, body: bytes
    ) -> tuple[int, Any]:
        """Return status code and content of the reply to a request."""
        if path == "/graphql":
            return self.reply_to_graphql(key, body)
        of_cluster = re.fullmatch(r"/v2/clusters/([^/]+)", path)
        if of_cluster and key == f"Bearer {self.key}":
            return self.reply_about_cluster(method, of_cluster[1])
        match = re.fullmatch(r"/v2/pods/([^/]+)(/action)?", path)
        template = "/v2/pods/{id}" + ((match[2] or "") if match else "")
        operation = DESCRIPTION["paths"][template].get(method.lower()) if match else None
        if match is None or operation is None:
            return 404, "no such path"
        if key != f"Bearer {self.key}":
            return 401, "no valid key"
        state = self.pods.get(match[1])
        if state is None:
            return 404, "pod not found"
        if method == "GET":
            return 200, self.pod(match[1], **state)
        if not self.rights:
            return 403, "the key lacks the right"
        content = operation["requestBody"]["content"]["application/json"]
        try:
            data = json.loads(body)
            jsonschema.validate(data, resolved(content["schema"]))
        except (ValueError, jsonschema.ValidationError) as error:
            return 422, str(error).splitlines()[0]
        action = data["action"]
        pod = self.pod(match[1], **state)
        if action not in pod["actions"] or pod["locked"] or "cluster" in pod:
            return 409, f"{action} is not valid for status {pod['status']}"
        state["status"] = AFTER[action]
        return (204, None) if action == "terminate" else (200, self.pod(match[1], **state))

    def content(self, method: str, path: str, code: int, found: Any) -> bytes:  # noqa: ANN401 - as above
        """Return the body of a reply, checked against the description."""
        if path == "/graphql":
            return json.dumps(found).encode()
        template = "/v2/pods/{id}/action" if path.endswith("/action") else "/v2/pods/{id}"
        if path.startswith("/v2/clusters/"):
            template = "/v2/clusters/{id}"
        replies = DESCRIPTION["paths"][template].get(method.lower(), {}).get("responses", {})
        described = resolved(replies.get(str(code), replies.get("default", {})))
        if code == 204:
            assert "content" not in described
            return b""
        if code != 200:
            found = {"title": "No success", "status": code, "detail": str(found)}
        for one in described.get("content", {}).values():
            jsonschema.validate(found, one["schema"])
        return json.dumps(found).encode()


def serve(state: RunPodServer, port: int = 0, tls: tuple[str, str] | None = None) -> Any:  # noqa: ANN401 - the server
    """Serve in a thread; return the server, whose `server_address` has the port."""

    class Handler(BaseHTTPRequestHandler):
        def _handle(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            faults = state.faults.get(self.command)
            fault = faults.pop(0) if faults else None
            pod = self.path.split("/")[3] if self.path.count("/") >= 3 else ""
            action = json.loads(body).get("action", "") if body else ""
            if fault is not None and fault[0] == 0:
                state.requests.append((self.command, pod, action, 0))
                self.close_connection = True
                return
            code, found = (
                state.reply(self.command, self.path, self.headers.get("Authorization") or "", body)
                if fault is None
                else (fault[0], "as the test wants it")
            )
            state.requests.append((self.command, pod, action, code))
            print(json.dumps(state.requests[-1]), flush=True)
            data = state.content(self.command, self.path, code, found)
            self.send_response(code)
            for name, text in ({} if fault is None else fault[1]).items():
                self.send_header(name, text)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_DELETE = _handle  # noqa: N815 - the names of http.server

        def log_message(self, *_arguments: object) -> None:
            """Print nothing: requests are recorded."""

    server = ThreadingHTTPServer(("", port), Handler)
    state.url = f"http{'s' if tls else ''}://127.0.0.1:{server.server_address[1]}"
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*tls)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    return server


if __name__ == "__main__":
    words = sys.argv[1:]
    files: tuple[str, str] | None = None
    if "--tls" in words:
        at = words.index("--tls")
        files, words = (words[at + 1], words[at + 2]), words[:at]
    pods: dict[str, dict[str, Any]] = {}
    for rank, word in enumerate(words[2:]):
        pod, _, cluster = word.partition("=")
        pods[pod] = {"cluster": {"id": cluster, "rank": rank}} if cluster else {}
    running = serve(RunPodServer(words[1], pods), int(words[0]), files)
    print("serving", flush=True)
    threading.Event().wait()
