"""A slow link: forwards frames between two interfaces, with delay and loss.

The lab runs this file as a script in the hub, for one pod, so that the kernel needs neither netem
nor a packet filter. Its arguments are two interfaces, the share of frames to lose (each way), the
delay in seconds (each way), and a seed.
"""

from __future__ import annotations

import heapq
import random
import select
import socket
import sys
import time
from contextlib import suppress

ETH_P_ALL = 3
SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 263, 15, 23
LONGEST = 1 << 17
MOST_AT_ONCE = 256


def line_on(interface: str) -> socket.socket:
    """Open an interface for whole frames with their virtio header.

    That header describes checksums that were left to the network card, which does not exist here.
    """
    line = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    line.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    line.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    line.bind((interface, ETH_P_ALL))
    line.settimeout(0)
    return line


def next_of(line: socket.socket) -> bytes:
    """Read the next frame; None if there is none, or if the link was just set down."""
    try:
        return line.recv(LONGEST)
    except OSError:
        return b""


def waiting_in(line: socket.socket) -> list[bytes]:
    """Read the waiting frames up to a limit, so that the other direction has its turn."""
    frames: list[bytes] = []
    while len(frames) < MOST_AT_ONCE and (frame := next_of(line)):
        frames.append(frame)
    return frames


def relay(one: str, other: str, loss: float, delay: float, seed: int) -> None:
    """Forward frames until killed."""
    lines = (line_on(one), line_on(other))
    away = {lines[0]: lines[1], lines[1]: lines[0]}
    chance = random.Random(seed)  # noqa: S311 - a dice, no secret
    late: list[tuple[float, int, socket.socket, bytes]] = []
    number = 0  # frames that are due at the same time keep their order
    print("ready", flush=True)
    while True:
        until = max(0.0, late[0][0] - time.monotonic()) if late else None
        for line in select.select(lines, (), (), until)[0]:
            due = time.monotonic() + delay
            for frame in waiting_in(line):
                if chance.random() >= loss:
                    number += 1
                    heapq.heappush(late, (due, number, away[line], frame))
        while late and late[0][0] <= time.monotonic():
            _, _, line, frame = heapq.heappop(late)
            with suppress(OSError):  # the queue is full, or the link down: one more lost frame
                line.send(frame)


if __name__ == "__main__":
    relay(sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]))
