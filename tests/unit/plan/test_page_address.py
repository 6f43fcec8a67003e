"""The address of the page, as each platform has it."""

from __future__ import annotations

import pytest

from agent.plan.page_address import how_to_fetch, page_address, proxied_ip
from support.captured import plan_of, read

TOKEN = {"RAY_AUTH_TOKEN": "t0ken-of-more-than-thirty-two-characters"}
CASES = {
    "runpod-head": "ssh -L 8266:localhost:8266 {RUNPOD_POD_ID} · http://localhost:8266 "
    "(the proxy wants RAY_AUTH_TOKEN)",
    "dstack-head": "http://localhost:8266 where `dstack apply` is attached "
    "(with 8266 among its ports)",
    "slurm-head": "ssh -L {port}:gpu-0:{port} login1 · http://localhost:{port}",
    "skypilot-head": "ssh -L {port}:localhost:{port} rl · http://localhost:{port}",
    "lws-head": "kubectl port-forward rl-0 8266 · http://localhost:8266",
    "kuberay-head": "kubectl port-forward {HOSTNAME} 8266 · http://localhost:8266",
    "plain-head": "ssh -L 8266:localhost:8266 {node} · http://localhost:8266",
}


@pytest.mark.parametrize("name", CASES)
def test_the_page_as_a_platform_has_it(name: str) -> None:
    """A proxy, a forwarded port, a tunnel through the login node, or ssh to the head."""
    environ, facts = read(name)
    plan = plan_of(environ, facts)
    place = {"port": plan.ports.agent, "node": plan.topology.node_name}
    assert page_address(plan) == CASES[name].format(**environ, **place)


FROM_CLAIM = "kubectl cp rl-files:/c/step_1 step_1 (or from another pod that mounts the disk)"
COPIES = {
    "runpod-head": "runpodctl send /c/step_1 on this pod, then what it prints on your machine",
    "dstack-head": "dstack apply -y -f get.dstack.yml, and meanwhile: scp -r"
    " get-{DSTACK_RUN_NAME}:/c/step_1 .",
    "slurm-head": "",
    "skypilot-head": "rsync -az rl:/c/step_1 .",
    "lws-head": FROM_CLAIM,
    "kuberay-head": FROM_CLAIM,
    "plain-head": "",
}


@pytest.mark.parametrize("name", COPIES)
def test_how_a_checkpoint_is_copied_from_a_platform(name: str) -> None:
    """By its own command; on a disk that stays it is there already."""
    environ, facts = read(name)
    assert how_to_fetch(plan_of(environ, facts), "/c/step_1") == COPIES[name].format(**environ)


@pytest.mark.parametrize("name", ["runpod-head", "runpod-cluster-head"])
def test_the_proxy_of_runpod_needs_a_token(name: str) -> None:
    """It shows a port of the pod to everyone: the page's form asks for the token there."""
    environ, facts = read(name)
    plan = plan_of(environ | TOKEN, facts)
    pod = environ["RUNPOD_POD_ID"]
    expected = f"https://{pod}-8266.proxy.runpod.net (with 8266/http among the pod's ports)"
    assert page_address(plan) == expected

    # It comes in by another interface than the other pods.
    assert proxied_ip(plan) == facts.default_source == "10.0.0.5"
    assert plan.address.ip != "10.0.0.5"
    (own,) = [listener for listener in plan.listeners if listener.who == "agent"]
    assert "10.0.0.5 (RunPod's proxy)" in own.bind
    assert proxied_ip(plan_of(environ, facts)) is None, "without a token nothing listens there"
