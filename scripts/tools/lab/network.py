"""The lab's network: namespaces for hub, void and pods, connected by veth pairs.

The hub has the bridge and the DNS server. The void has the far ends of the decoy interfaces,
connected to nothing. The machine's own network namespace is not touched.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tools.lab.errors import LabError
from tools.lab.launch import setns
from tools.lab.process import Running

if TYPE_CHECKING:
    from collections.abc import Sequence

NETNS_DIR = Path("/run/netns")
ETC_DIR = Path("/etc/netns")
MOUNT_INFO = Path("/proc/self/mountinfo")
FIRST_HOST = 10
BRIDGE = "lab"
COMMAND_TIMEOUT = 20.0


@dataclass(frozen=True)
class Shape:
    """The pods' network: interface names, and the first three numbers of each /24."""

    interface: str = "podnet1"
    decoy: str = "eth0"
    subnet: str = "10.77.0"
    decoy_subnet: str = "172.31.250"

    @property
    def gateway(self) -> str:
        """The hub's address, which serves DNS."""
        return f"{self.subnet}.1"


@dataclass(frozen=True)
class Port:
    """One pod's interfaces and addresses."""

    index: int
    name: str
    netns: str
    shape: Shape

    @property
    def ip(self) -> str:
        """The address by which the other pods reach it."""
        return f"{self.shape.subnet}.{FIRST_HOST + self.index}"

    @property
    def decoy_ip(self) -> str:
        """The address of the interface with the default route, which leads nowhere."""
        return f"{self.shape.decoy_subnet}.{FIRST_HOST + self.index}"

    @property
    def mac(self) -> str:
        """The hardware address of the real interface."""
        return f"02:77:00:00:00:{FIRST_HOST + self.index:02x}"

    @property
    def far_end(self) -> str:
        """The name of the other end's interface, in the hub (real) and in the void (decoy)."""
        return f"port{self.index}"


HUB_MAC = "02:77:00:00:00:01"
VOID_MAC = "02:77:ff:00:00:01"
NOBODY_MAC = "02:77:fe:00:00:01"
RELAY = Path(__file__).with_name("relay.py")
RELAY_ENV = {"PATH": "/usr/sbin:/sbin:/usr/bin:/bin"}


def hub_batch(ports: Sequence[Port]) -> list[str]:
    """Write the `ip` commands that build the hub."""
    shape = ports[0].shape
    lines = [
        "link set lo up",
        f"link add {BRIDGE} address {HUB_MAC} type bridge mcast_snooping 0",
        f"address add {shape.gateway}/24 dev {BRIDGE}",
        f"link set {BRIDGE} up",
    ]
    for port in ports:
        far, near = port.far_end, shape.interface
        lines += [
            f"link add {far} type veth peer name {near} address {port.mac} netns {port.netns}",
            f"link set {far} master {BRIDGE} up",
            f"neighbour add {port.ip} lladdr {port.mac} dev {BRIDGE} nud permanent",
        ]
    return lines


def void_batch(ports: Sequence[Port]) -> list[str]:
    """Write the `ip` commands that build the void: far ends that drop all packets."""
    lines = []
    for port in ports:
        far, near = port.far_end, port.shape.decoy
        lines += [
            f"link add {far} type veth peer name {near} netns {port.netns}",
            f"link set {far} addrgenmode none up",
        ]
    return lines


def pod_batch(port: Port, ports: Sequence[Port]) -> list[str]:
    """Write the `ip` commands for one pod's side.

    Neighbor entries are static, as in an overlay network: a cut pod is silent, whereas a missing
    ARP reply would give its peers "no route to host" after 3 s.
    """
    shape = port.shape
    nowhere = f"{shape.decoy_subnet}.1"
    known = [(shape.gateway, HUB_MAC), *((peer.ip, peer.mac) for peer in ports if peer != port)]
    return [
        "link set lo up",
        f"link set {shape.interface} addrgenmode none up",
        f"address add {port.ip}/24 dev {shape.interface}",
        f"link set {shape.decoy} addrgenmode none up",
        f"address add {port.decoy_ip}/24 dev {shape.decoy}",
        f"neighbour add {nowhere} lladdr {VOID_MAC} dev {shape.decoy} nud permanent",
        f"route add default via {nowhere} dev {shape.decoy}",
        *(
            f"neighbour add {address} lladdr {mac} dev {shape.interface} nud permanent"
            for address, mac in known
        ),
    ]


def ip(*words: str, batch: Sequence[str] = ()) -> str:
    """Run `ip`, with commands on its standard input if given; return its output."""
    return _run(["ip", *words, *(["-batch", "-"] if batch else [])], batch)


def tc(*words: str) -> str:
    """Run `tc`, which shapes traffic; return its output."""
    return _run(["tc", *words], ())


def _run(command: list[str], batch: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            command,
            input="".join(f"{line}\n" for line in batch),
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise LabError(f"{' '.join(command)}: {problem}") from problem
    if done.returncode:
        raise LabError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def udp_socket_in(netns: str) -> socket.socket:
    """Make a UDP socket in the named namespace."""
    made: list[socket.socket | OSError] = []

    def make() -> None:  # in a new thread: setns changes the namespace of a thread only
        try:
            setns(str(NETNS_DIR / netns), "net")
            made.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        except OSError as problem:
            made.append(problem)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if isinstance(made[0], OSError):
        raise LabError(f"no socket in {netns}: {made[0]}") from made[0]
    return made[0]


class Network:
    """Namespaces and links of one lab; up() makes them, down() removes whatever was made."""

    def __init__(self, lab_id: str, names: Sequence[str], shape: Shape) -> None:
        self.hub = f"{lab_id}-hub"
        self.void = f"{lab_id}-void"
        self.ports = [
            Port(index, name, f"{lab_id}-pod-{name}", shape) for index, name in enumerate(names)
        ]
        self._made: list[str] = []
        self._dropped: dict[Port, list[Port]] = {}
        self._relays: dict[Port, Running] = {}
        self._found_mount = str(NETNS_DIR) in mount_points()

    def up(self) -> None:
        """Build the network."""
        for netns in (self.hub, self.void, *(port.netns for port in self.ports)):
            self._made.append(netns)  # set first, since down() must remove a partial network, too
            ip("netns", "add", netns)
        ip("-n", self.hub, batch=hub_batch(self.ports))
        ip("-n", self.void, batch=void_batch(self.ports))
        for port in self.ports:
            ip("-n", port.netns, batch=pod_batch(port, self.ports))

    def down(self) -> None:
        """Remove the parts that were built."""
        while self._relays:
            self._relays.popitem()[1].close()
        while self._made:
            remove_netns(self._made[-1])
            self._made.pop()
        if not self._found_mount:
            forget_netns_mount()

    def cut(self, port: Port) -> None:
        """Take the pod's port off the bridge: its link stays up, its packets are lost."""
        self._end_relay(port)
        ip("-n", self.hub, "link", "set", port.far_end, "nomaster")

    def drop(self, port: Port, peer: Port) -> None:
        """Send a pod's packets for one peer to a hardware address that no interface has."""
        self._dropped.setdefault(port, []).append(peer)
        self._point(port, peer, NOBODY_MAC)

    def slow(self, port: Port, loss: float, delay: float, folder: Path) -> None:
        """Put a relay between the pod's port and the bridge, which loses and delays frames.

        The kernel splits traffic to it into frames of the link's size, so that a lost frame is not
        a burst of forty.
        """
        self.cut(port)
        near, far = f"relay{port.index}", f"behind{port.index}"
        whole = ("gso_max_segs", "1", "gso_max_size", "1500")
        ip("-n", port.netns, "link", "set", port.shape.interface, *whole)
        lines = [
            f"link add {near} type veth peer name {far}",
            f"link set {far} {' '.join(whole)}",
            f"link set {near} addrgenmode none up",
            f"link set {far} addrgenmode none master {BRIDGE} up",
        ]
        ip("-n", self.hub, batch=lines)
        words = [port.far_end, near, loss, delay, port.index]
        relay = Running(
            {
                "argv": [sys.executable, "-I", "-S", str(RELAY), *map(str, words)],
                "env": RELAY_ENV,
                "cwd": "/",
                "netns": str(NETNS_DIR / self.hub),
            },
            folder / f"relay-{port.name}",
            "relay",
        )
        self._relays[port] = relay
        relay.wait_for("^ready$", "stdout")

    def slow_down(self, port: Port, mbit: int) -> None:
        """Limit a pod's outgoing bandwidth by a token bucket, which every kernel has."""
        words = ["root", "tbf", "rate", f"{mbit}mbit", "burst", "64kb", "latency", "200ms"]
        tc("-n", port.netns, "qdisc", "replace", "dev", port.shape.interface, *words)

    def heal(self, port: Port) -> None:
        """Put the pod's port back on the bridge, and restore its neighbor entries."""
        self._end_relay(port)
        for peer in self._dropped.pop(port, ()):
            self._point(port, peer, peer.mac)
        ip("-n", self.hub, "link", "set", port.far_end, "master", BRIDGE)

    def _point(self, port: Port, peer: Port, mac: str) -> None:
        where = ("lladdr", mac, "dev", port.shape.interface, "nud", "permanent")
        ip("-n", port.netns, "neighbour", "replace", peer.ip, *where)

    def _end_relay(self, port: Port) -> None:
        relay = self._relays.pop(port, None)
        if relay is not None:
            relay.close()
            ip("-n", self.hub, "link", "delete", f"relay{port.index}")


def mount_points() -> list[str]:
    """List the mount points, including bind mounts, which is_mount() does not detect."""
    return [line.split()[4] for line in MOUNT_INFO.read_text().splitlines()]


def remove_netns(name: str) -> None:
    """Remove a named namespace and its /etc directory, if they exist."""
    if (NETNS_DIR / name).exists():
        ip("netns", "delete", name)
    shutil.rmtree(ETC_DIR / name, ignore_errors=True)
    with contextlib.suppress(OSError):  # other namespaces are in it, or it was never made
        ETC_DIR.rmdir()


def forget_netns_mount() -> None:
    """Undo the mount of /run/netns by `ip netns add` when no namespace is left in it."""
    if str(NETNS_DIR) in mount_points() and not any(NETNS_DIR.iterdir()):
        subprocess.run(["umount", str(NETNS_DIR)], capture_output=True, check=False)
    with contextlib.suppress(OSError):
        NETNS_DIR.rmdir()
