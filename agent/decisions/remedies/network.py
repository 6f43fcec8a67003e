"""Causes in the network between the nodes."""

from __future__ import annotations

from agent.decisions.remedies.row import Remedy

NETWORK: tuple[Remedy, ...] = (
    Remedy(
        "no interface",
        r"no (?:NCCL_SOCKET_IFNAME|socket) interface found"
        r"|Unable to find address for: (?P<name>\S+)",
        "NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME names an interface that a node does not have",
        "Unset it: the agent sets it on each node to the interface of its address",
        signs=(
            "no socket interface found",
            "RuntimeError: Unable to find address for: ",
        ),
    ),
    Remedy(
        "NCCL connect",
        r"socketStartConnect: Connect to (?P<peer>[^\s<]+)\S* failed",
        "NCCL could not reach {peer}: the interface is wrong, or its ports are closed",
        "Look at NCCL_SOCKET_IFNAME on each node (Instant Clusters: ens1, Global Networking: "
        "podnet1) "
        "and open all ports between the nodes",
        signs=("socketStartConnect: Connect to",),
    ),
    Remedy(
        "Gloo",
        r"Using the loopback address as fallback|connectFullMesh failed",
        "Gloo took this node's loopback, since its host name stands for no address of its own",
        "Leave GLOO_SOCKET_IFNAME to the agent, or set it to the interface between the nodes",
        signs=("connectFullMesh failed",),
    ),
    Remedy(
        "NCCL timeout",
        r"Watchdog caught collective operation timeout|NCCL.{0,40}timed out|Timeout at NCCL work",
        "a collective operation waited for a rank that never came",
        "Look for the rank that is silent first: it died, ran out of memory or is stuck; "
        "`ray stack` or py-spy shows where",
        signs=("Watchdog caught collective operation timeout",),
    ),
    Remedy(
        "node address",
        r"This node has an IP address of (?P<ip>\S+?),? and Ray expects this IP address",
        "a process took {ip} for its node's address, which Ray does not know, or its raylet died",
        "Set AGENT_NODE_IP to the address between the nodes; if it is that already, raylet.out "
        "says "
        "why Ray ended",
        signs=("and Ray expects this IP address",),
    ),
    Remedy(
        "vLLM address",
        r"Every node should have a unique IP address",
        "VLLM_HOST_IP is the same on several nodes",
        "Unset it: the agent sets it on each node to that node's address",
        signs=("Every node should have a unique IP address",),
    ),
    Remedy(
        "local address",
        r"Cannot assign requested address",
        "a service was told to listen on, or to come from, an address that this node does not "
        "have, "
        "or the kernel ran out of outgoing ports",
        "Unset AGENT_NODE_IP, or choose one of the addresses that `pod-agent doctor` shows",
    ),
    Remedy(
        "GCS lost",
        r"Failed to connect to GCS within \d+ seconds",
        "Ray's GCS on the head was gone for too long",
        "Look at the head: its agent.log, gcs_server.out, and whether its memory ran out",
        signs=("Failed to connect to GCS within",),
    ),
    Remedy(
        "marked dead",
        r"mistakenly been marked as dead by the GCS|has been marked dead because the detector",
        "a node missed its health checks: overloaded, frozen, or not reached by the head",
        "Open the node manager's port from head to workers (AGENT_PORT + 1); for slow nodes raise "
        "RAY_health_check_failure_threshold and RAY_health_check_timeout_ms on the head",
        signs=(
            "mistakenly been marked as dead",
            "has been marked dead because the detector",
        ),
    ),
    Remedy(
        "GCS not reached",
        r"Unable to connect to GCS at (?P<where>\S+?)\.?(?:\s|$)",
        "GCS does not answer at {where}: not there yet, or its port is closed",
        "Open Ray's port (AGENT_RAY_PORT, 6379) on the head for the workers",
    ),
    Remedy(
        "proxy",
        r"HTTP proxy.{0,80}(?:502|503|504)|Proxy(?:Error| CONNECT).{0,80}",
        "a proxy stands between, also where none should",
        "Name the nodes' network in no_proxy, or unset the proxy for the job",
    ),
)
