"""What the head asked this node to tell, until it has it: ends of logs, and how probes went."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.boot.probing import Prober
from agent.control.fields import LONGEST_TEXT
from agent.control.protocol import MOST_ANSWERS
from agent.record.log import say
from agent.runtime.last_words import in_thread
from agent.runtime.process import tail_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.boot.node_run import NodeRun
    from agent.decisions.probing import Answer
    from agent.work.where import Place

_TAIL_LINES = 20


class Asked:
    """Finds out what the head asked for, and keeps it until a report with it was answered."""

    def __init__(self, run: NodeRun) -> None:
        self._run = run
        self._prober = Prober(run.plan, run.redactor.clean)
        self._logs: dict[str, str] = {}
        self._answers: list[Answer] = []
        self._sent: tuple[dict[str, str], list[Answer]] = ({}, [])

    def to_send(self) -> tuple[dict[str, str] | None, tuple[Answer, ...]]:
        """Return what a report is to tell."""
        self._sent = (dict(self._logs), self._answers[:MOST_ANSWERS])
        return self._sent[0] or None, tuple(self._sent[1])

    def arrived(self) -> None:
        """Forget what the last report told, since it was answered."""
        logs, answers = self._sent
        for name, text in logs.items():
            if self._logs.get(name) == text:
                del self._logs[name]
        self._answers = [one for one in self._answers if one not in answers]

    async def probe(self, probe: str, at: str, place: Place, tell: Callable[[], None]) -> None:
        """Try what the head wants tried."""
        self._answers.append(await self._prober.probe(probe, at, place))
        tell()

    async def log(self, name: str) -> None:
        """Get the end of a log ready for the next report: of a log that this node has."""
        known = self._run.plan.logs()
        if name not in known:
            say(f"an order of the head's is refused: this node has no log {name!r}", "warning")
            return
        self._logs[name] = await self.end_of(known[name])

    async def end_of(self, name: str) -> str:
        """Return the end of one of this node's logs, without a secret."""
        path = self._run.folder.file(name)
        return self._run.redactor.clean(
            await in_thread(lambda: tail_of(path, _TAIL_LINES, LONGEST_TEXT))
        )
