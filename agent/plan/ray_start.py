"""The command lines of `ray start`, head and worker."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.node.facts import MIB
from agent.plan.environment import object_store

if TYPE_CHECKING:
    from agent.base.ports import Ports
    from agent.node.facts import Facts
    from agent.settings import Settings


@dataclass(frozen=True)
class RayStart:
    """All that both command lines rest on; the head's address comes when it is known."""

    settings: Settings
    facts: Facts
    ports: Ports
    temp_dir: str
    dashboard_host: str
    allotted_memory: int | None = None
    """What a shared node allots to this job; Ray would take the whole machine's for its own."""

    def head(self, node_ip: str) -> list[str]:
        """Return the argv that starts Ray's head on this node."""
        ports = self.ports
        return [
            *self._common(node_ip),
            "--head",
            f"--port={ports.gcs}",
            f"--dashboard-host={self.dashboard_host}",
            f"--dashboard-port={ports.dashboard}",
            f"--ray-client-server-port={ports.client}",
            f"--temp-dir={self.temp_dir}",
            "--disable-usage-stats",
        ]

    def worker(self, node_ip: str, head_ip: str) -> list[str]:
        """Return the argv that joins this node to the head's Ray."""
        host = f"[{head_ip}]" if ":" in head_ip else head_ip
        return [*self._common(node_ip), f"--address={host}:{self.ports.gcs}"]

    def _common(self, node_ip: str) -> list[str]:
        ports, settings = self.ports, self.settings
        argv = [
            *self.facts.ray_command,
            "start",
            "--block",
            f"--node-ip-address={node_ip}",
            f"--node-manager-port={ports.node_manager}",
            f"--object-manager-port={ports.object_manager}",
            f"--dashboard-agent-listen-port={ports.dashboard_agent}",
            f"--dashboard-agent-grpc-port={ports.dashboard_agent_grpc}",
            f"--runtime-env-agent-port={ports.runtime_env_agent}",
            f"--metrics-export-port={ports.metrics}",
            f"--min-worker-port={ports.first_worker}",
            f"--max-worker-port={ports.last_worker}",
            f"--num-cpus={settings.num_cpus or self.facts.cpus}",
        ]
        if settings.num_gpus is not None:
            argv.append(f"--num-gpus={settings.num_gpus}")
        if settings.resources:
            argv.append(f"--resources={json.dumps(settings.resources)}")
        size = object_store(self.facts, self.allotted_memory)
        if self.allotted_memory is not None and size is not None:
            argv.append(f"--memory={max(MIB, self.allotted_memory - size)}")
        if size is not None:
            argv.append(f"--object-store-memory={size}")
        if settings.debug_ray == "1":
            argv.append("--ray-debugger-external")
        return argv
