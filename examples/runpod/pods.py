#!/usr/bin/env python3
"""Make the pods of template.json: the head, and the workers with its id.

    RUNPOD_API_KEY=… python3 pods.py --gpu "NVIDIA A100-SXM4-80GB" --gpus 2 --center EU-RO-1

Image, job and the number of workers are in the first lines of template.json. A pod's
id exists only once the pod does: the pod without HEAD_POD_ID is the head, the workers get its id.
If a pod cannot be created, the others are terminated: an incomplete cluster only bills.

After the run each pod is held with its processes stopped: RunPod restarts a container whose command
exits. Held pods bill: stop or terminate them when you have what you need.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

API = "https://api.runpod.io/v2"
TEMPLATE = Path(__file__).with_name("template.json")
TEMPLATE_ONLY = ("category", "public", "serverless")  # what a template has and a pod has not


def main() -> int:
    """Make all pods, or none."""
    options = parsed()
    template = json.loads(TEMPLATE.read_text(encoding="utf-8"))
    workers = int(template["env"]["EXPECTED_WORKERS"])
    names = ["head", *(f"worker-{number}" for number in range(1, workers + 1))]

    made: list[str] = []
    try:
        for name in names:
            body = pod(template, name, made[0] if made else None, options)
            made.append(call("POST", "pods", body)["id"])
            print(f"{name} is pod {made[-1]}")
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the pods made so far bill
        text = error.read().decode(errors="replace") if isinstance(error, HTTPError) else ""
        print(f"not complete: {text or repr(error)}", file=sys.stderr)
        print(f"check in the console whether a pod {name} was made too", file=sys.stderr)
        terminate(made)
        return 1

    print(f"the head's log: pod {made[0]} in the console; it names every worker that is missing")
    return 0


def parsed() -> argparse.Namespace:
    """Read the command line; without an API key, exit with 2."""
    parser = argparse.ArgumentParser(description="Make the pods of template.json.")
    add = parser.add_argument
    add("--gpu", required=True, help="RunPod's id of the GPU: 'NVIDIA H100 80GB HBM3'")
    add("--gpus", type=int, required=True, help="GPUs on each pod")
    where = "data center with Global Networking, of the network volume if there is one"
    add("--center", required=True, help=where)
    options = parser.parse_args()
    if not os.environ.get("RUNPOD_API_KEY"):
        parser.error("RUNPOD_API_KEY is not set: an API key from your RunPod account's settings")
    return options


def terminate(pods: list[str]) -> None:
    """Terminate pods; name those that may still bill."""
    for pod_id in pods:
        try:
            call("DELETE", f"pods/{pod_id}")
            print(f"pod {pod_id} is terminated", file=sys.stderr)
        except Exception as problem:  # noqa: BLE001, PERF203 - the others are still terminated
            why = f"may still bill, terminate it by hand: {problem!r}"
            print(f"pod {pod_id} {why}", file=sys.stderr)


def pod(
    template: dict[str, Any], name: str, head: str | None, options: argparse.Namespace
) -> dict[str, Any]:
    """Return the request for one pod; a worker's request has HEAD_POD_ID."""
    settings = {key: value for key, value in template.items() if key not in TEMPLATE_ONLY}
    env = dict(settings["env"])
    if head is not None:
        env["HEAD_POD_ID"] = head
    return {
        **settings,
        "name": name,
        "env": env,
        "gpu": {"id": options.gpu, "count": options.gpus},
        "dataCenterIds": [options.center],
        "globalNetworking": True,
    }


def call(method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Ask RunPod's API v2; an empty reply reads as an empty object."""
    headers = {
        "Authorization": f"Bearer {os.environ['RUNPOD_API_KEY']}",
        "Content-Type": "application/json",
    }
    data = None if body is None else json.dumps(body).encode()
    request = Request(f"{API}/{path}", data, headers, method=method)  # noqa: S310 - API is an https URL
    with urlopen(request, timeout=60) as reply:  # noqa: S310 - same
        answer: dict[str, Any] = json.loads(reply.read() or b"{}")
        return answer


if __name__ == "__main__":
    sys.exit(main())
