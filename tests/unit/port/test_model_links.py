"""Sixteen nodes on links of limited speed take a model in at most 1.2 times the time of one."""

from __future__ import annotations

import pytest

from agent.port.model_pull import FILES_AT_A_TIME
from agent.port.model_server import Chain

NODES = 16
STEP = 0.01  # seconds of a turn
STALLED = 20.0


class Links:
    """Nodes that pass files on: each sends and receives at most `speed` files a second.

    The first one fetches one file a second from the hub, one after the other, and has a file only
    once it is whole, as with the hub's client.
    """

    def __init__(self, files: int, speed: float) -> None:
        self.files = files
        self._speed = speed
        self.has = [[0.0] * files for _ in range(NODES)]  # of each node, of each file
        self._of_hub = 0.0
        self.former = self.has  # a turn before
        self.dead: set[int] = set()
        chain = Chain()
        names = {f"10.0.0.{n}": n for n in range(1, NODES)}
        self._sources = {0: [0]} | {
            n: [*(names[address] for address in chain.sources_of(name)), 0]
            for name, n in names.items()
        }
        self._stalled = [0.0] * NODES

    def turn(self) -> None:
        """Let all links send for one step."""
        self._of_hub = min(self.files, self._of_hub + STEP)
        for at in range(int(self._of_hub + 1e-9)):
            self.has[0][at] = 1.0
        before = [[*row] for row in self.has]
        sends = [self._speed * STEP] * NODES
        for node in range(1, NODES):
            if node not in self.dead:
                self._receive(node, before, sends)

    def _receive(self, node: int, before: list[list[float]], sends: list[float]) -> None:
        source = self._sources[node][0]
        most = self._speed * STEP
        got = 0.0
        missing = [at for at, part in enumerate(self.has[node]) if part < 1.0]
        for at in missing[:FILES_AT_A_TIME]:
            if source in self.dead:
                break
            there = before[source][at] - self.has[node][at]
            data = max(0.0, min(there, most - got, sends[source]))
            self.has[node][at] = min(1.0, self.has[node][at] + data)
            sends[source] -= data
            got += data

        # A source that sends nothing, and gets nothing itself, is replaced.
        gets = sum(before[source]) > sum(self.former[source])
        self._stalled[node] = 0.0 if got or gets else self._stalled[node] + STEP
        if missing and (source in self.dead or self._stalled[node] > STALLED):
            self._stalled[node] = 0.0
            self._sources[node] = self._sources[node][1:] or [0]

    def seconds(self) -> float:
        """Return when all living nodes have all files."""
        turns = 0
        while any(
            min(row) < 1.0 - 1e-9 for node, row in enumerate(self.has) if node not in self.dead
        ):
            self.former = [[*row] for row in self.has]
            self.turn()
            turns += 1
            if turns == int(self.files / 2 / STEP):
                self.dead |= self.die_at_half
        return turns * STEP

    die_at_half: frozenset[int] = frozenset()


@pytest.mark.parametrize(
    ("files", "speed", "most"),
    [(8, 1.0, 1.2), (30, 1.0, 1.1), (4, 4.0, 1.2), (4, 1.0, 1.3)],
)
def test_sixteen_nodes_take_little_longer_than_one(files: int, speed: float, most: float) -> None:
    """On links as fast as the hub, with eight files or more; with few files on faster links.

    One node alone takes one second for a file.
    """
    assert Links(files, speed).seconds() <= most * files


def test_a_node_that_dies_halfway_delays_those_after_it_little() -> None:
    """They take the rest from the node before it."""
    links = Links(16, 2.0)
    links.die_at_half = frozenset({5})
    assert links.seconds() <= 1.2 * 16
