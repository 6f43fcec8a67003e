"""The pods' DNS: a dnsmasq in the hub that serves only the published names.

publish and unpublish return when the change has effect: they query the server until it does.
"""

from __future__ import annotations

import contextlib
import secrets
import signal
import socket
import struct
from typing import TYPE_CHECKING

from tools.lab.errors import LabError
from tools.lab.network import NETNS_DIR, udp_socket_in
from tools.lab.process import Running
from tools.lab.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

READY_TIMEOUT = 5.0
ASK_TIMEOUT = 0.1
NXDOMAIN = 3
TYPE_A = 1
POINTER = 0xC0


def hosts_text(table: dict[str, str], domain: str) -> str:
    """Write dnsmasq's hosts file; a name without a dot also gets its full form."""
    return "".join(
        f"{address} {name}.{domain} {name}\n" if "." not in name else f"{address} {name}\n"
        for name, address in sorted(table.items())
    )


def question(number: int, name: str) -> bytes:
    """Write a DNS query for a name's A record."""
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    return struct.pack("!6H", number, 0x0100, 1, 0, 0, 0) + labels + b"\0\0\1\0\1"


def answer(packet: bytes, number: int) -> str | None:
    """Parse a reply: an address, "" for "no such name", None if it answers another query."""
    number_in_reply, flags, _, answers, _, _ = struct.unpack_from("!6H", packet)
    if number_in_reply != number or not flags & 0x8000:
        return None
    if flags & 0xF == NXDOMAIN or not answers:
        return ""
    at = _after_name(packet, 12) + 4
    for _ in range(answers):
        at = _after_name(packet, at)
        kind, _, _, length = struct.unpack_from("!HHIH", packet, at)
        at += 10
        if kind == TYPE_A:
            return socket.inet_ntoa(packet[at : at + 4])
        at += length
    return ""


def _after_name(packet: bytes, at: int) -> int:
    while packet[at]:
        if packet[at] >= POINTER:
            return at + 2
        at += packet[at] + 1
    return at + 1


class Dns:
    """The DNS server of one lab; addresses by name are in `table`."""

    def __init__(self, netns: str, address: str, domain: str, folder: Path) -> None:
        self.table: dict[str, str] = {}
        self.answering = True
        self._netns = netns
        self._address = address
        self._domain = domain
        self._folder = folder
        self._hosts = folder / "hosts"
        self._server: Running | None = None
        self._socket: socket.socket | None = None

    def up(self, table: dict[str, str]) -> None:
        """Start the server with these names and wait until it answers."""
        self.table = dict(table)
        self._write()
        self._server = Running(
            {
                "argv": self._command(),
                "env": {"PATH": "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin"},
                "cwd": "/",
                "netns": str(NETNS_DIR / self._netns),
            },
            self._folder / "dnsmasq",
            "dns",
        )
        self._socket = udp_socket_in(self._netns)
        self._socket.settimeout(ASK_TIMEOUT)
        self._socket.connect((self._address, 53))  # a connected socket reports refusals at once
        self._await(f"ready.{self._domain}", "")

    def _command(self) -> list[str]:
        return [
            "dnsmasq",
            "--keep-in-foreground",
            "--conf-file=/dev/null",
            "--pid-file",  # none
            "--log-facility=-",
            "--user=root",  # its files are in a directory owned by root
            "--bind-interfaces",
            f"--listen-address={self._address}",
            "--no-resolv",
            "--no-hosts",
            f"--addn-hosts={self._hosts}",
            "--cache-size=0",
            "--local=/#/",  # authoritative for everything: an unknown name is NXDOMAIN at once
            "--bogus-priv",
        ]

    def down(self) -> None:
        """Stop the server."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._server is not None:
            self._server.close()
            self._server = None

    def publish(self, name: str, address: str) -> None:
        """Set the address of the name (and of name.domain, if it has no dot)."""
        self.table[name] = address
        self._reload(name, address)

    def unpublish(self, name: str) -> None:
        """Remove the name."""
        self.table.pop(name, None)
        self._reload(name, "")

    def answer(self, *, answering: bool) -> None:
        """Make the server silent (its clients time out), or answer again."""
        self._running().signal(signal.SIGCONT if answering else signal.SIGSTOP)
        self.answering = answering

    def _running(self) -> Running:
        if self._server is None or not self._server.running:
            tail = self._server.tail() if self._server else ""
            raise LabError(f"the lab's DNS server does not run{tail}")
        return self._server

    def _write(self) -> None:
        fresh = self._hosts.with_suffix(".new")
        fresh.write_text(hosts_text(self.table, self._domain))
        fresh.replace(self._hosts)

    def _reload(self, name: str, expected: str) -> None:
        self._write()
        self._running().signal(signal.SIGHUP)
        if self.answering:
            self._await(name, expected)

    def _await(self, name: str, expected: str) -> None:
        def in_force() -> bool:
            self._running()
            return self.ask(name) == expected

        until(in_force, READY_TIMEOUT, f"DNS answer {expected or 'NXDOMAIN'} for {name}")

    def ask(self, name: str) -> str | None:
        """Query the server once: an address, "" for an unknown name, None for no answer."""
        if self._socket is None:
            return None
        number = secrets.randbelow(1 << 16)
        with contextlib.suppress(TimeoutError, ConnectionRefusedError):
            self._socket.send(question(number, name))
            while True:
                reply = answer(self._socket.recv(512), number)
                if reply is not None:
                    return reply
        return None
