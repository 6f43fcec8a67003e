"""SageMaker training jobs: a list of hosts, of which the first in sorted order leads."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from agent.topology.platforms.claim import Claim, as_host, fault, number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.settings import Settings

HOSTS, CURRENT = "SM_HOSTS", "SM_CURRENT_HOST"


def detect(environ: Mapping[str, str], _settings: Settings) -> Claim | None:
    """Claim the host of a training job."""
    if not {HOSTS, CURRENT} & environ.keys():
        return None
    hosts = _hosts(environ.get(HOSTS, ""))
    current = environ.get(CURRENT, "").strip()
    if current not in hosts:
        raise fault(CURRENT, repr(current), f"one of the hosts of {HOSTS}: {', '.join(hosts)}")
    many, rank = len(hosts) > 1, hosts.index(current)
    return Claim(
        platform="sagemaker",
        is_head=rank == 0,
        evidence=(f"{CURRENT}={current}", f"{HOSTS}={json.dumps(hosts)}"),
        role_variable=f"RAY_WORKER + {CURRENT}",
        knows_role=True,
        knows_ranks=True,
        head_host=hosts[0] if many else None,
        node_name=current,
        own_names=(current,) if many else (),
        rank=rank,
        nodes=len(hosts),
        gpus_per_node=number(environ, "SM_NUM_GPUS"),
        run_id=environ.get("TRAINING_JOB_NAME") or None,
        interface=environ.get("SM_NETWORK_INTERFACE_NAME") or None,
        owns_machine=True,
        alone=not many,
    )


def _hosts(text: str) -> list[str]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not found or not all(isinstance(h, str) for h in found):
        raise fault(HOSTS, repr(text), 'a JSON list of hosts such as ["algo-1", "algo-2"]')
    hosts = sorted(as_host(name, HOSTS) for name in found)
    if len(set(hosts)) < len(hosts):
        raise fault(HOSTS, repr(text), "every host once")
    return hosts
