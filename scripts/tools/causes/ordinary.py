"""Count the causes that are named in ordinary logs: runs that went well, and logs of others.

The logs are published ones. The repository keeps their sources only, and they are fetched once into
a folder. Any other `*.log` file in that folder counts too: logs of this machine's own runs.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from agent.base.text import parse_toml, without_controls
from agent.base.value import Value
from agent.diagnosis.find_cause import diagnose_logs
from agent.diagnosis.searched_log import Log
from agent.record.job_lines import JobLines
from tools.causes.logs import Text
from tools.causes.runs import read_output

SOURCES = Path(__file__).resolve().parents[3] / "tests" / "causes" / "ordinary_sources.toml"
_WINDOW = 2_000  # lines that are searched together, as the end of a run's output
_TIMED = 20_000
_PIECE = 50  # lines that are read at a time


class Source(Value):
    """A published log: a file of a repository at a commit."""

    repo: str
    commit: str
    path: str
    sha256: str
    lines: int  # how many of its lines count: the first ones

    @property
    def file(self) -> str:
        """Return the name of its copy."""
        return f"{self.repo}/{self.path}".replace("/", "+")


class FalseCause(NamedTuple):
    """A cause that was named in an ordinary log."""

    file: str
    when: str
    said: str


def count_false_causes(folder: Path, mirrors: Path | None) -> int:
    """Fetch what is missing, print each cause that is named, and the figures: 0, or 1 if any."""
    folder.mkdir(parents=True, exist_ok=True)
    logs = {}
    for source in read_sources():
        text = fetched(source, folder, mirrors)
        if text is not None:
            logs[source.file] = text.split("\n")[: source.lines]
    own = sorted(path for path in folder.rglob("*.log") if "+" not in path.name)
    for path in own:
        logs[str(path.relative_to(folder))] = path.read_text(errors="replace").split("\n")

    # Each window is a run's output: read while it runs, and searched as if the run had failed.
    found = []
    for file, lines in logs.items():
        for start in range(0, len(lines), _WINDOW):
            found += search(file, lines[start : start + _WINDOW])
    for one in found:
        print(f"{one.file}: {one.when}: {one.said}")
    count = sum(map(len, logs.values()))
    print(f"{len(logs)} logs, {count} lines: {len(found)} causes named")
    reading, ending = seconds_for([line for lines in logs.values() for line in lines])
    print(f"{_TIMED} lines: {reading:.2f} s of CPU as it runs, {ending:.2f} s at the end")
    return 1 if found else 0


def read_sources() -> list[Source]:
    """Return the published logs that are listed."""
    rows = parse_toml(SOURCES.read_text(encoding="utf-8"))["source"]
    return [Source(**row) for row in rows]


def search(file: str, lines: list[str]) -> list[FalseCause]:
    """Return the causes that are named in lines, while a job writes them and at its end."""
    with patch("agent.record.job_lines.say") as said:
        read_output(Text("\n".join([*lines, ""]), 0))
    sentences = [call.args[0] for call in said.call_args_list if call.args[1] == "warning"]
    found = [FalseCause(file, "as it runs", one) for one in sentences]
    end = diagnose_logs([Log("", file, "\n".join(lines))])
    if end.row is not None and end.row.kind == "cause":
        found.append(FalseCause(file, "at the end", f"{end.cause} ({end.line!r})"))
    return found


def seconds_for(lines: list[str]) -> tuple[float, float]:
    """Return the CPU seconds for so many of these lines: reading known ones, and at the end."""
    every = max(1, len(lines) // _TIMED)
    chosen = [without_controls(line) for line in lines[::every][:_TIMED]]
    known = JobLines(str).known
    began = time.process_time()
    with patch("agent.record.job_lines.say"):
        for start in range(0, len(chosen), _PIECE):
            known.scan(chosen[start : start + _PIECE])
    read = time.process_time()
    diagnose_logs([Log("", "job.log", "\n".join(chosen))])
    return read - began, time.process_time() - read


def fetched(source: Source, folder: Path, mirrors: Path | None) -> str | None:
    """Return a log's text, fetched if it is not there; None if it cannot be had."""
    copy = folder / source.file
    if not copy.exists():
        data = _read_at_commit(source, folder, mirrors)
        if data is None:
            print(f"cannot be fetched: {source.repo} {source.path}", file=sys.stderr)
            return None
        copy.write_bytes(data)
    data = copy.read_bytes()
    if hashlib.sha256(data).hexdigest() != source.sha256:
        print(f"differs from its checksum: {copy}", file=sys.stderr)
        return None
    return data.decode(errors="replace")


def _read_at_commit(source: Source, folder: Path, mirrors: Path | None) -> bytes | None:
    name = source.repo.replace("/", "+")
    if mirrors is not None:
        clones = [mirrors / name / "repo", mirrors / name]
        clone = next((path for path in clones if path.is_dir()), clones[0])
    else:
        clone = folder / f"{name}.git"
        url = f"https://github.com/{source.repo}"
        if not clone.exists():
            _git("init", "--quiet", "--bare", str(clone))
        _git("-C", str(clone), "fetch", "--quiet", "--depth=1", url, source.commit)
    return _git("-C", str(clone), "show", f"{source.commit}:{source.path}")


def _git(*arguments: str) -> bytes | None:
    done = subprocess.run(["git", *arguments], capture_output=True, check=False)
    return done.stdout if done.returncode == 0 else None
