#!/usr/bin/env python3
"""Make RunPod's pods by pod.json or instant-cluster.json, and send the agent to each.

    python3 pods.py

It asks for an API key of your RunPod account, unless RUNPOD_API_KEY has one. First it makes the
secrets that the request names and the account lacks: a new ray_auth_token, which is also written
to the file token.env, and the others from variables of the same names, such as WANDB_API_KEY, or as
you type them. A pod's id exists only once the pod does: the pod without HEAD_POD_ID is the head,
the workers get its id. If a pod cannot be created, the others are terminated: an incomplete cluster
only bills.

The agent's file lies beside this program, and so does code.tar.gz where the job is a command of
your own: pack.py makes it anew from your folder first. Both are sent to each pod that waits for
them, by RunPod's proxy, as soon as the pod's image is there. `python3 pods.py --send ID…` sends
them again.
"""

from __future__ import annotations

import argparse
import getpass
import hashlib
import json
import os
import re
import secrets
import subprocess
import sys
import time
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

API = "https://api.runpod.io/v2"
GRAPHQL = "https://api.runpod.io/graphql"  # has the secrets, which the API v2 lacks
CONSOLE = "https://console.runpod.io/user/secrets"
PROXY = "https://{pod}-8266.proxy.runpod.net"
HERE = Path(__file__).parent
KEPT = "token.env"
"""The file with the value of the secret ray_auth_token; pack.py sends no .env file."""
PATIENCE = 2 * 3600.0  # seconds until a pod's image has been pulled
AGENT = {"User-Agent": "pod-agent"}  # RunPod's proxy refuses that of Python's own library
PAUSE = 5.0  # seconds between two tries
MEMBERS_WITHIN = 300.0  # seconds until RunPod names all pods of a cluster


CREATED = 201
LIVES = b'{"ok": true}'
"""What a pod answers that took the file, and an agent at /livez."""


class NotMadeError(Exception):
    """What was asked for could not be made whole."""


def main() -> int:
    """Make all pods, or none; then send them the agent."""
    parser = argparse.ArgumentParser(
        description="Make the secrets and the pods, and send them the agent.",
        usage=argparse.SUPPRESS,  # an error begins with what is wrong
    )
    parser.add_argument("--send", nargs="+", metavar="ID", help="only send, to pods that exist")
    parser.add_argument("--no-secrets", action="store_true", help=f"they were made in {CONSOLE}")
    options = parser.parse_args()
    if options.send:
        return send_to_all(options.send)

    is_cluster = (HERE / "instant-cluster.json").exists()
    try:
        given("RUNPOD_API_KEY", "an API key of your RunPod account")
        if not pack_code():
            return 1
        if not options.no_secrets:
            request = HERE / ("instant-cluster.json" if is_cluster else "pod.json")
            make_secrets(request.read_text(encoding="utf-8"))
        pods = make_cluster() if is_cluster else make_pods()
    except NotMadeError as error:
        print(f"not complete: {error}", file=sys.stderr)
        return 1
    print(f"head: https://console.runpod.io/pods?id={pods[0]}  its log names who is missing")
    token = f"the file {KEPT}" if (HERE / KEPT).exists() else "the secret ray_auth_token"
    print(f"page: {PROXY.format(pod=pods[0])}  (with the token: {token})")
    return send_to_all(pods)


def given(variable: str, what: str) -> str:
    """Return a variable, or what the user types; raise where nobody can type."""
    if not os.environ.get(variable):
        if not sys.stdin.isatty():
            raise NotMadeError(f"{variable} is not set: {what}")
        os.environ[variable] = getpass.getpass(f"{variable}, {what}: ")
    return os.environ[variable]


# --- the secrets -------------------------------------------------------------------------------


def make_secrets(request: str) -> None:
    """Make the secrets that the request names and the account lacks."""
    wanted = sorted(set(re.findall(r"RUNPOD_SECRET_(\w+)", request)))
    try:
        account = ask_graphql("query { myself { secrets { name } } }")["myself"]
        existing = {secret["name"] for secret in account["secrets"]}
        for name in wanted:
            if name in existing:
                print(f"the secret {name} exists")
                continue
            ask_graphql(
                "mutation ($name: String!, $value: String!)"
                " { secretCreate(input: {name: $name, value: $value}) { id } }",
                name=name,
                value=value_of(name),
            )
            print(f"the secret {name} is made")
    except NotMadeError:
        raise
    except Exception as error:
        by_hand = f"make {', '.join(wanted)} in {CONSOLE}, then: python3 pods.py --no-secrets"
        raise NotMadeError(f"secrets: {described(error)}. Or {by_hand}") from error


def value_of(secret: str) -> str:
    """Return the value of a new secret; the token of the pods is kept in a file, too."""
    if secret != "ray_auth_token":  # noqa: S105 - a name
        return given(secret.upper(), f"for the secret {secret}")
    file = HERE / KEPT
    if not file.exists():
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as writer:
            writer.write(f"RAY_AUTH_TOKEN={secrets.token_hex(32)}\n")
    return file.read_text(encoding="utf-8").strip().partition("=")[2]


def ask_graphql(query: str, **variables: str) -> dict[str, Any]:
    """Ask RunPod's GraphQL API; raise with its first error."""
    answer = ask("POST", GRAPHQL, {"query": query, "variables": variables})
    if answer.get("errors"):
        raise ValueError(answer["errors"][0].get("message", "no reason given"))
    data: dict[str, Any] = answer["data"]
    return data


# --- the code ----------------------------------------------------------------------------------


def pack_code() -> bool:
    """Pack the code anew, where there is some; return whether that succeeded."""
    packer = HERE / "pack.py"
    if not packer.exists():
        return True
    return subprocess.run([sys.executable, str(packer)], check=False).returncode == 0


def with_code(env: dict[str, str]) -> dict[str, str]:
    """Return a pod's variables with size and digest of the code that it takes."""
    archive = HERE / "code.tar.gz"
    if not archive.exists():
        return {**env}
    content = archive.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    return {**env, "CODE_SIZE": str(len(content)), "CODE_SHA256": digest}


# --- make --------------------------------------------------------------------------------------


def make_pods() -> list[str]:
    """Make the head's pod, and the workers' with its id; terminate all if one cannot be made."""
    request = json.loads((HERE / "pod.json").read_text(encoding="utf-8"))
    workers = int(request["env"]["EXPECTED_WORKERS"])
    names = ["head", *(f"worker-{number}" for number in range(1, workers + 1))]
    made: list[str] = []
    for name in names:
        env = with_code(request["env"])
        body = {**request, "name": f"{request['name']}-{name}", "env": env}
        if made:
            env["HEAD_POD_ID"] = made[0]
        try:
            made.append(call("POST", "pods", body)["id"])
        except (Exception, KeyboardInterrupt) as error:
            print(f"check in the console whether a pod {name} was made too", file=sys.stderr)
            terminate(made)
            raise NotMadeError(described(error)) from error
        print(f"{name} is pod {made[-1]}")
    return made


def make_cluster() -> list[str]:
    """Make an Instant Cluster; return the ids of its pods, the first one first."""
    request = json.loads((HERE / "instant-cluster.json").read_text(encoding="utf-8"))
    request = {**request, "env": with_code(request.get("env", {}))}
    try:
        cluster = call("POST", "clusters", request)["id"]
    except Exception as error:
        raise NotMadeError(described(error)) from error
    print(f"the cluster is {cluster}; it bills until it is deleted, in the console or by the agent")
    until = time.monotonic() + MEMBERS_WITHIN
    while True:
        members = call("GET", f"clusters/{cluster}/pods")["pods"]
        if len(members) >= request["compute"]["podCount"]:
            ranks = {pod["id"]: (pod.get("cluster") or {}).get("rank") or 0 for pod in members}
            return sorted(ranks, key=lambda pod: ranks[pod])
        if time.monotonic() > until:
            raise NotMadeError(f"RunPod names {len(members)} pods of cluster {cluster}")
        time.sleep(PAUSE)


def terminate(pods: list[str]) -> None:
    """Terminate pods; name those that may still bill."""
    for pod in pods:
        try:
            call("DELETE", f"pods/{pod}")
            print(f"pod {pod} is terminated", file=sys.stderr)
        except Exception as problem:  # noqa: BLE001, PERF203 - the others are still terminated
            why = f"may still bill, terminate it by hand: {problem!r}"
            print(f"pod {pod} {why}", file=sys.stderr)


def call(method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Ask RunPod's API v2."""
    return ask(method, f"{API}/{path}", body)


def ask(method: str, url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Send a request with the key; an empty reply reads as an empty object."""
    headers = {
        **AGENT,
        "Authorization": f"Bearer {os.environ['RUNPOD_API_KEY']}",
        "Content-Type": "application/json",
    }
    data = None if body is None else json.dumps(body).encode()
    request = Request(url, data, headers, method=method)  # noqa: S310 - an https URL
    with urlopen(request, timeout=60) as reply:  # noqa: S310 - same
        answer: dict[str, Any] = json.loads(reply.read() or b"{}")
        return answer


def described(error: BaseException) -> str:
    """Return RunPod's own words where it said some."""
    text = error.read().decode(errors="replace") if isinstance(error, HTTPError) else ""
    return text or repr(error)


# --- send --------------------------------------------------------------------------------------


def send_to_all(pods: list[str]) -> int:
    """Send the files to the pods that wait for them; return 0, or 1 where one got none."""
    agent = [*HERE.glob("pod_agent-*.whl"), *HERE.glob("pod-agent")]
    files = [*agent[:1], *HERE.glob("code.tar.gz")]
    if not files:
        return 0  # the pods fetch the agent
    contents = []
    for file in files:
        contents.append(file.read_bytes())
        digest = hashlib.sha256(contents[-1]).hexdigest()
        print(f"sending {file.name} ({digest[:12]}) to each pod when its image is there")
    until = time.monotonic() + PATIENCE
    waiting = list(pods)
    while waiting:
        for pod in list(waiting):
            if has_files(pod, contents):
                print(f"pod {pod} has {'the agent' if agent else 'the code'}")
                waiting.remove(pod)
        if waiting and time.monotonic() > until:
            print(f"not sent to {', '.join(waiting)}: python3 pods.py --send …", file=sys.stderr)
            return 1
        if waiting:
            time.sleep(PAUSE)
    return 0


def has_files(pod: str, contents: list[bytes]) -> bool:
    """Send the files to one pod; return whether it took all, or runs the agent already."""
    base = PROXY.format(pod=pod)
    puts = [Request(f"{base}/", content, AGENT, method="PUT") for content in contents]  # noqa: S310 - PROXY is an https URL
    ask = Request(f"{base}/livez", headers=AGENT)  # noqa: S310 - same
    return all(answer_of(put)[0] == CREATED for put in puts) or answer_of(ask) == (200, LIVES)


def answer_of(request: Request) -> tuple[int, bytes]:
    """Return status and body; (0, b"") where nobody answers yet, or another than a waiting pod."""
    try:
        with urlopen(request, timeout=90) as reply:  # noqa: S310 - same
            return reply.status, reply.read(100)
    except (URLError, OSError, HTTPException):
        return 0, b""


if __name__ == "__main__":
    sys.exit(main())
