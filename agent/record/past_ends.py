"""How earlier agents of this container ended: what a restarted container does about it."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from agent.base import times
from agent.base.ends import Outcome
from agent.base.value import Value
from agent.record.files import NoRecord, Record, access, safe_name, seconds_between
from agent.settings.model import KNOWN_NAMES
from agent.settings.redact import MASK, looks_secret

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

QUICK_RESTARTS = 3
"""After so many restarts with one cause, the next such end is treated as a verdict."""
_MOST = 10
_FOLDER = ".ends"
_NOT_OF_THE_JOB = {
    *("AGENT_RERUN", "AGENT_ON_DONE", "AGENT_PRICE_PER_HOUR", "AGENT_RUNPOD_API"),
    *("RUNPOD_API_KEY", "RUNPOD_API_KEY_FILE", "AGENT_LOG", "AGENT_LOG_MODE"),
}
"""Settings whose change is no reason to run a finished job again."""


class PastEnd(Value):
    """Begin and end of one agent in this container; times are UTC, ISO 8601."""

    digest: str
    """Of its settings and command."""
    run_id: str
    began: str
    ended: str
    outcome: Outcome

    @property
    def cause(self) -> tuple[object, ...]:
        """Return what two ends have in common; a reason may hold times and addresses."""
        return self.outcome.kind, self.outcome.exit_code, self.outcome.culprit


class PastEnds(Record):
    """The ends of this node's agents, the last one last."""

    ends: tuple[PastEnd, ...] = ()

    @classmethod
    def of(cls, root: Path, node: str) -> PastEnds:
        """Read the ends of a node; none if there is no valid file."""
        found = cls.read(_file(root, node))
        return cls() if isinstance(found, NoRecord) else found

    def with_end(self, end: PastEnd) -> PastEnds:
        """Return the ends with one more, or with a later one of the same agent."""
        others = [one for one in self.ends if one.began != end.began]
        return PastEnds((*others, end)[-_MOST:])

    def save(self, root: Path, node: str) -> OSError | None:
        """Write the ends of a node; return the error on failure."""
        path = _file(root, node)
        try:
            root.mkdir(parents=True, exist_ok=True)
            access.make_folder(path.parent)
        except OSError as error:
            return error
        return self.write(path)

    @property
    def last(self) -> PastEnd | None:
        """Return the last end."""
        return self.ends[-1] if self.ends else None


def _file(root: Path, node: str) -> Path:
    return root / _FOLDER / f"{safe_name(node)}.json"


def settings_digest(environ: Mapping[str, str], command: Sequence[str] | None) -> str:
    """Return a hash of all settings of the job, without secrets."""
    given = {
        name: MASK if looks_secret(name) else environ[name]
        for name in KNOWN_NAMES
        if name in environ and name not in _NOT_OF_THE_JOB
    }
    text = json.dumps([None if command is None else [*command], given], sort_keys=True)
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]


def quick_restarts(ends: Sequence[PastEnd], longest: float) -> int:
    """Count the restarts before the last end that had its settings and its cause.

    A restart is quick if it follows the end by the platform's own pause. An agent that ran for more
    than `longest` seconds got further than its boot: it ends the series.
    """
    count = 0
    last = ends[-1]
    for end in reversed(ends):
        same = (end.digest, end.cause) == (last.digest, last.cause)
        if not same or seconds_between(end.began, end.ended) > longest:
            break
        if end is not last and seconds_between(end.ended, last.began) > times.RESTART_PAUSE:
            break
        count += end is not ends[-1]
        last = end
    return count
