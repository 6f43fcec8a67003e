"""What one node found in an examination of the job, as a text of limited size for the head."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from agent.base.text import escaped, map_texts, plain
from agent.base.typed import convert
from agent.base.value import Value
from agent.diagnosis.flight_recorder import GroupProgress
from agent.diagnosis.stacks import ProcessStack, ThreadStack, place_index

if TYPE_CHECKING:
    from collections.abc import Callable


class NodeFindings(Value):
    """The job's processes on one node, and what else may explain a hang."""

    stacks: tuple[ProcessStack, ...] = ()
    collectives: tuple[GroupProgress, ...] = ()
    notes: tuple[str, ...] = ()  # sentences: services, GPUs, kernel; what could not be looked at
    logs: str = ""  # the last lines of engines' own logs


_FRAMES = (24, 12, 6, 3)
_THREADS = (16, 4, 2, 1)
_MOST_NOTES = 16
_LONGEST_NOTE = 300


def encode(findings: NodeFindings, most: int, clean: Callable[[str], str] = str) -> str:
    """Return findings as JSON of at most so many characters, without secrets.

    What does not fit is left out: logs first, then outer frames and further threads, then the last
    processes.
    """
    notes = tuple(note[:_LONGEST_NOTE] for note in findings.notes[:_MOST_NOTES])
    findings = replace(findings, notes=notes)
    for logs in (findings.logs, findings.logs[-most // 4 :], ""):
        text = _json(replace(findings, logs=logs), clean)
        if len(text) <= most:
            return text
    findings = replace(findings, logs="")
    for frames, threads in zip(_FRAMES, _THREADS, strict=True):
        shorter = tuple(_shortened(stack, frames, threads) for stack in findings.stacks)
        text = _json(replace(findings, stacks=shorter), clean)
        if len(text) <= most:
            return text
    stacks = tuple(_shortened(stack, 1, 1) for stack in findings.stacks)
    while len(text) > most and stacks:
        stacks = stacks[: len(stacks) * 3 // 4]
        text = _json(replace(findings, stacks=stacks, collectives=()), clean)
    return text if len(text) <= most else "{}"


def _json(findings: NodeFindings, clean: Callable[[str], str]) -> str:
    plain = map_texts(msgspec.to_builtins(findings), clean)
    return msgspec.json.encode(plain).decode()


def _shortened(stack: ProcessStack, frames: int, threads: int) -> ProcessStack:
    """Return a stack with its telling thread, a few others, and their innermost frames."""
    telling = stack.telling_thread
    others = [thread for thread in stack.threads if thread is not telling]
    shown = [telling, *others][:threads] if telling.frames else others[:threads]
    return replace(stack, threads=tuple(_cut(thread, frames) for thread in shown))


def _cut(thread: ThreadStack, most: int) -> ThreadStack:
    """Keep the frame that shows what the thread does, and those next to it."""
    at = place_index(thread.frames)
    first = 0 if at is None else max(0, at + 1 - most)
    return replace(thread, frames=thread.frames[first : first + most])


def decode(text: str, node: str) -> NodeFindings:
    """Read a node's findings; any other text is a note, such as why there are none."""
    try:
        fields = msgspec.json.decode(text)
        logs = fields.get("logs", "") if isinstance(fields, dict) else ""
        findings = convert(map_texts(fields, escaped), NodeFindings)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeError, RecursionError):
        return NodeFindings(notes=(escaped(text[:_LONGEST_NOTE]),) if text.strip() else ())
    stacks = tuple(replace(stack, node=node) for stack in findings.stacks)
    return replace(findings, stacks=stacks, logs=plain(logs))


def as_text(findings: NodeFindings) -> str:
    """Return a node's findings as text for a person."""
    lines = [*findings.notes]
    for stack in findings.stacks:
        lines.append(f"{stack.role} (pid {stack.pid}), state {stack.state} ({stack.source}):")
        for thread in stack.threads:
            lines.append(f"  thread {thread.name or 'without a name'}")
            lines += [
                f"    {frame.function} ({frame.file}:{frame.line})" for frame in thread.frames
            ]
    for progress in findings.collectives:
        recent = "; ".join(f"{last.number} {last.name} {last.where}" for last in progress.recent)
        lines.append(
            f"rank {progress.rank}, process group {progress.group}: last collectives {recent}"
        )
    if findings.logs:
        lines += ["last lines of logs:", findings.logs]
    return "\n".join(lines)
