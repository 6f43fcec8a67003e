"""A pod: an address, a name, a private /tmp, and its containers."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING

from tools.lab.container import Container
from tools.lab.mounts import FOLDERS, HOME, image_mount_plan, image_root, mount_plan
from tools.lab.network import ETC_DIR, NETNS_DIR

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tools.lab.dns import Dns
    from tools.lab.launch import Spec
    from tools.lab.network import Network, Port

BASE_ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": HOME,
    "LANG": "C.UTF-8",
}


def hosts_file(name: str) -> str:
    """Write a pod's /etc/hosts: its short name is a loopback address, as on Debian."""
    return f"127.0.0.1 localhost\n127.0.1.1 {name}\n::1 localhost ip6-localhost ip6-loopback\n"


class Pod:
    """One rented machine, as its tenant sees it; made by Lab.

    `tmp` and `home` are the host's paths of its /tmp and $HOME; they exist as long as the lab.
    """

    def __init__(  # noqa: PLR0913 - the lab is the only caller, by keyword
        self,
        *,
        port: Port,
        network: Network,
        dns: Dns,
        folder: Path,
        logs: Path,
        shm: str,
        needed: Sequence[Path],
    ) -> None:
        self.name = port.name
        self.containers: list[Container] = []
        self._port = port
        self._network = network
        self._dns = dns
        self._folder = folder
        self._logs = logs
        self._shm = shm
        self._needed = needed
        self._numbers = itertools.count(1)

    def prepare(self) -> None:
        """Make its folders and its /etc files; for the lab."""
        for folder in FOLDERS:
            (self._folder / folder).mkdir(parents=True)
        self.tmp.chmod(0o1777)
        etc = ETC_DIR / self.netns
        etc.mkdir(parents=True)
        (etc / "hosts").write_text(hosts_file(self.name))
        (etc / "resolv.conf").write_text(f"nameserver {self._port.shape.gateway}\n")

    @property
    def ip(self) -> str:
        """The address by which the other pods reach it."""
        return self._port.ip

    @property
    def decoy_ip(self) -> str:
        """The address of the interface with the default route, which leads nowhere."""
        return self._port.decoy_ip

    @property
    def netns(self) -> str:
        """The name of its network namespace (for `ip netns exec`)."""
        return self._port.netns

    @property
    def tmp(self) -> Path:
        """The host's path to its /tmp."""
        return self._folder / "tmp"

    @property
    def home(self) -> Path:
        """The host's path to its $HOME."""
        return self._folder / "home"

    def start(  # noqa: PLR0913 - what is rarely wanted goes by keyword
        self,
        argv: Sequence[str | os.PathLike[str]],
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        *,
        clean_env: bool = True,
        shm: str | None = None,
        image: Path | None = None,
        volumes: Mapping[str, Path] | None = None,
    ) -> Container:
        """Run argv as PID 1 of a new container on this pod; return after its exec.

        The environment is env over PATH, HOME and LANG; with clean_env=False, env over the
        caller's. The default working directory is $HOME. With `image`, a root file system, the
        container sees only the files of that image, and the files and folders of `volumes` at
        their paths.
        """
        base = dict(BASE_ENV) if clean_env else {**os.environ, "HOME": HOME}
        etc = ETC_DIR / self.netns
        spec: Spec = {
            "argv": [os.fspath(word) for word in argv],
            "env": {**base, **(env or {})},
            "cwd": os.fspath(cwd) if cwd is not None else HOME,
            "netns": str(NETNS_DIR / self.netns),
            "hostname": self.name,
            "mounts": mount_plan(self._folder, etc, shm or self._shm, self._needed),
        }
        if image is not None:
            spec["mounts"] = image_mount_plan(
                image, self._folder, etc, shm or self._shm, volumes or {}
            )
            spec["root"] = str(image_root(self._folder))
        container = Container(spec, self._logs / f"{self.name}-{next(self._numbers)}", self.name)
        self.containers.append(container)
        return container

    def publish(self, address: str | None = None) -> None:
        """Add its name to DNS, with its own address or another."""
        self._dns.publish(self.name, address or self.ip)

    def unpublish(self) -> None:
        """Remove its name from DNS."""
        self._dns.unpublish(self.name)

    def cut(self) -> None:
        """Cut it off: its link stays up, but packets are lost both ways, without an error."""
        self._network.cut(self._port)

    def drop(self, peer: Pod) -> None:
        """Lose its packets to one peer, without an error; the peer's packets still arrive."""
        self._network.drop(self._port, peer._port)

    def slow(self, *, loss: float = 0.0, delay: float = 0.0) -> None:
        """Lose a share of all packets, each way, and delay the others by this many seconds."""
        self._network.slow(self._port, loss, delay, self._logs)

    def heal(self) -> None:
        """Undo cut(), drop() and slow()."""
        self._network.heal(self._port)

    def slow_down(self, mbit: int) -> None:
        """Limit its outgoing bandwidth, as a provider may."""
        self._network.slow_down(self._port, mbit)

    def freeze(self) -> None:
        """Stop all its processes (SIGSTOP); their sockets stay open without answers."""
        for container in self.containers:
            container.freeze()

    def thaw(self) -> None:
        """Undo freeze()."""
        for container in self.containers:
            container.thaw()

    def kill(self) -> None:
        """Kill all its containers. The kernel closes their connections, as after an OOM kill."""
        for container in self.containers:
            container.kill()

    def lose(self) -> None:
        """Lose the whole machine: cut off first, then killed, so that peers receive nothing."""
        self.cut()
        self.kill()

    def close(self) -> None:
        """Kill all its containers and close the descriptors; for the lab's end."""
        for container in self.containers:
            container.close()

    def __repr__(self) -> str:
        return f"<Pod {self.name} {self.ip}>"
