"""The command lines of `ray start` on head and worker."""

from __future__ import annotations

import json

from msgspec.structs import replace

from agent.base.ports import Ports
from agent.base.text import in_url, reached_at
from agent.base.value import Value
from agent.job.services import HEAD_IP, NODE_IP
from agent.node.facts import MIB, Facts, supports_token_auth
from agent.settings.model import Settings
from agent.settings.rules import TEMP_DIR, flags_for_node, flags_of


class OwnRay(Value):
    """A Ray that the agent starts on this node: the inputs of its command lines."""

    settings: Settings
    facts: Facts
    ports: Ports
    session: str  # Ray's temp dir, which contains its sessions
    allotted_memory: int | None = None  # bytes of a job on a shared node, unknown to Ray
    gpus: str = ""  # how many GPUs Ray gets; '' where it counts them itself

    @property
    def is_guarded(self) -> bool:
        """Return whether Ray requires the token."""
        has_token = self.settings.ray_auth_token is not None
        return has_token and supports_token_auth(self.facts.ray.version)

    @property
    def dashboard_host(self) -> str:
        """Return where the dashboard listens: on all interfaces only if Ray requires the token."""
        usual = "0.0.0.0" if self.is_guarded else "127.0.0.1"  # noqa: S104 - guarded
        return self.settings.dashboard_host or usual

    @property
    def gcs(self) -> str:
        """Return the address of GCS for the head itself."""
        return f"{NODE_IP}:{self.ports.gcs}"

    @property
    def dashboard(self) -> str:
        """Return the URL of the dashboard for the head itself."""
        return f"http://{in_url(reached_at(self.dashboard_host))}:{self.ports.dashboard}"

    def command(self, *, is_head: bool) -> tuple[str, ...]:
        """Return the argv of `ray start`, with placeholders for the addresses."""
        ports = self.ports
        settings = self.settings
        given = dict(flags_of(self.settings.ray_args))

        # This node's address, ports and resources.
        argv = [
            *self.facts.ray.command,
            "start",
            "--block",
            f"--node-ip-address={NODE_IP}",
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
        if self.gpus:
            argv.append(f"--num-gpus={self.gpus}")
        if settings.resources:
            argv.append(f"--resources={json.dumps(settings.resources)}")

        # Memory limits where Ray's defaults are too large and the user set none. With
        # --plasma-directory, /dev/shm does not limit the store.
        facts = replace(self.facts, shm=0) if "--plasma-directory" in given else self.facts
        size = object_store(facts, self.allotted_memory)
        if size is not None and self.allotted_memory is not None and "--memory" not in given:
            argv.append(f"--memory={max(MIB, self.allotted_memory - size)}")
        if size is not None and "--object-store-memory" not in given:
            argv.append(f"--object-store-memory={size}")
        if settings.debug_ray == "1":
            argv.append("--ray-debugger-external")

        # The head's services, or the head to join. The user's own flags are last.
        if is_head:
            argv += [
                "--head",
                f"--port={ports.gcs}",
                f"--dashboard-host={self.dashboard_host}",
                f"--dashboard-port={ports.dashboard}",
                f"--ray-client-server-port={ports.client}",
                f"{TEMP_DIR}={self.session}",
                "--disable-usage-stats",
            ]
        else:
            argv.append(f"--address={HEAD_IP}:{ports.gcs}")
            if TEMP_DIR in given:  # without it a worker's Ray uses the head's path
                argv.append(f"{TEMP_DIR}={self.session}")
        return (*argv, *flags_for_node(settings.ray_args, is_head=is_head))


def object_store(facts: Facts, allotted: int | None = None) -> int | None:
    """Return the object store's size, or None where Ray's default fits.

    Ray takes 30 % of the machine's memory, even where a job has only a share of it. If that is
    more than /dev/shm, it silently puts objects under /tmp.
    """
    wanted = int(0.3 * (facts.memory if allotted is None else allotted))
    if facts.shm != 0 and facts.shm_free < wanted:
        return max(80 * MIB, int(facts.shm_free * 0.9))
    return None if allotted is None else max(80 * MIB, wanted)
