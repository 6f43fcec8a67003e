"""What the head has nodes try before the job: the reward server, each other's Ray, the ways."""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING

from agent.base.value import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.base.ranges import Bytes, Required, Seconds
    from agent.checks.all_reduce import Share
    from agent.checks.finding import Finding

SCORE = "score"
"""One scoring request to the reward server."""
REACH = "reach"
"""A connection to the Ray of a fellow node, and back."""
SAMPLE = "sample"
"""Some MB from a fellow node's agent: how fast the way between them is."""
ALL_REDUCE = "all-reduce"
"""A share of an all-reduce over all GPUs: an order for it has the node's seat."""
PROBES = (SCORE, REACH, SAMPLE)


@dataclass(frozen=True)
class Answer:
    """How one try went."""

    probe: Required
    at: str
    """The address of the fellow node that was tried; '' for the head's."""
    evidence: str = ""
    """Why it failed; '' where it did not."""
    seconds: Seconds = 0.0
    """How long it took; of several tries the shortest."""
    size: Bytes = 0
    """How many bytes came in that time, where that was the question."""
    words: str = ""
    """What came of it, where more is to be said: of the head's own tries alone."""


@dataclass(frozen=True)
class Answered:
    """The head's own node tried something that its decisions wanted tried."""

    answer: Answer


@dataclass(frozen=True)
class Preflight:
    """The all-reduce before the job: who takes part, until when, and what came of it."""

    until: float
    shares: tuple[tuple[str, Share], ...]
    """By node, as orders name it, in the order of ranks."""
    answers: Mapping[str, Answer] = field(default_factory=dict)
    lost: tuple[str, ...] = ()
    """Nodes that went away meanwhile."""
    is_over: bool = False


@dataclass(frozen=True)
class Probes:
    """What nodes were asked to try, and what came of it."""

    asked: frozenset[str] = frozenset()
    """Nodes that were asked for a score."""
    open: Mapping[str, float] = field(default_factory=dict)
    """Those that have not answered yet, and when they must have."""
    reached: frozenset[tuple[str, str]] = frozenset()
    """Who was asked to reach whom."""
    samples: Mapping[tuple[str, str], Answer | None] = field(default_factory=dict)
    """Who was asked for a sample of the way from which address, and what came of it."""
    awaited: tuple[tuple[str, str], ...] = ()
    """Those of which nothing came yet: a report is not to cost a look at all others."""
    early_at: float | None = None
    """When those that joined measure the ways between them, if others are awaited still."""
    sampled_by: float | None = None
    """When what was heard of them is told; None where nothing is to be told."""
    are_the_last: bool = False
    """True once all workers had joined as samples were asked for."""
    slow: Finding | None = None
    """What was told of slow ways last."""
    findings: tuple[Finding, ...] = ()

    def without(self, key: str, ip: str) -> Probes:
        """Forget an agent that is no more; `ip` is its address where no other node has that."""

        def stays(pair: tuple[str, str]) -> bool:
            return pair[0] != key and (not ip or pair[1] != ip)

        return replace(
            self,
            asked=self.asked - {key},
            open={node: until for node, until in self.open.items() if node != key},
            reached=frozenset(filter(stays, self.reached)),
            samples={pair: one for pair, one in self.samples.items() if stays(pair)},
            awaited=tuple(filter(stays, self.awaited)),
        )
