"""A child's last lines, without colors and start-up noise: the line with the cause."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from agent.processes.process import Child, tail_of
from agent.settings.redact import Redactor

if TYPE_CHECKING:
    from pathlib import Path

AT = "2026-11-22 02:17:17,419\t"
STARTED = f"""\
[2026-11-22 02:17:07,313 W 9365 9365] network_util.cc:330: Failed to determine local IP via …
{AT}INFO usage_lib.py:448 -- Usage stats collection is disabled.
{AT}WARNING authentication_token_setup.py:73 -- Token authentication is disabled for this …
{AT}SUCC scripts.py:1085 -- \x1b[32mRay runtime started.\x1b[39m
{AT}INFO cli_output_helpers.py:17 -- \x1b[2mthe head node or within the cluster network.\x1b[22m
{AT}INFO scripts.py:1095 -- \x1b[1m  ray start --address='127.0.0.1:7379'\x1b[22m
{AT}INFO scripts.py:1274 -- Process exit logs will be saved to: \x1b[1m/tmp/x.log\x1b[22m\x1b[26m
"""
OF_RAYLET = "[2026-11-22 02:17:38,734 {} 426 426] (raylet) worker_pool.cc:811: a job\n"
ENDED = f"""\
{AT}ERR scripts.py:1307 -- \x1b[31mSome Ray subprocesses exited unexpectedly:\x1b[39m
{AT}ERR scripts.py:87 -- \x1b[31m\x1b[1mPART\x1b[22m\x1b[39m\x1b[2m [exit code=127]\x1b[22m
{AT}ERR scripts.py:115 -- \x1b[31m----- BEGIN PART.err tail (exit code(s)=127) -----\x1b[39m
{AT}ERR scripts.py:122 -- \x1b[31mLINES
\x1b[39m
{AT}ERR scripts.py:128 -- \x1b[31m----- END PART.err tail (exit code(s)=127) -----\x1b[39m
{AT}ERR scripts.py:1315 -- \x1b[31mRemaining processes will be killed.\x1b[39m
"""
"""What Ray 2.60 wrote when its client server died of a path with a space."""


def ended(lines: str) -> str:
    """Return the log of a Ray one of whose parts ended with these lines."""
    return STARTED + ENDED.replace("PART", "ray_client_server").replace("LINES", lines)


@pytest.mark.parametrize(
    ("log", "tail"),
    [
        (
            ended("bash: line 1: /home/me/my: No such file"),
            "ray_client_server [exit code=127] | bash: line 1: /home/me/my: No such file",
        ),
        (ended("one\ntwo\nthree\nfour"), "ray_client_server [exit code=127] | three | four"),
        (
            STARTED + "ValueError: no such flag\n",
            "ValueError: no such flag",
        ),
        (STARTED.splitlines()[3] + "\n", "Ray runtime started."),
        (f"{OF_RAYLET.format('I')}{OF_RAYLET.format('E')}", OF_RAYLET.format("E").strip()),
        ("a\nb\n\n  c  \nd\n", "b | c | d"),
        ("10%\r50%\r100%\n", "10% | 50% | 100%"),
        ("\x1b]0;title\x07\x1b[1;31mred\x1b[0m \x1b(Bplain\x07\x00\n", "red plain"),
        ("caf\u00e9 \u2026 \u65e5\u672c\n", "caf\u00e9 \u2026 \u65e5\u672c"),
        ("Remaining processes will be killed. Not\n", "Remaining processes will be killed. Not"),
        ("\x1b[0m\n \n", ""),
        ("", ""),
    ],
)
def test_the_decisive_line(tmp_path: Path, log: str, tail: str) -> None:
    """Ray's boilerplate goes unless there is nothing else; others' words stay as they are."""
    file = tmp_path / "log"
    file.write_text(log, encoding="utf-8", newline="")
    assert tail_of(file, 3, 300, str) == tail


def test_it_is_cut_and_may_be_missing(tmp_path: Path) -> None:
    """Whole lines fit, the newest; a line that is too long loses its end; no file has no words."""
    log = tmp_path / "log"
    for text, tail in (
        ("y" + "x" * 100, "y" + "x" * 9),
        ("first\nsecond\nthird\n", "third"),
        ("1\n22\n333\n", "22 | 333"),
    ):
        log.write_text(text)
        assert tail_of(log, 3, 10, str) == tail
    log.write_text("gcs [exit code=1]\n22\n4444\n")
    assert tail_of(log, 3, 25, str) == "gcs [exit code=1] | 4444"
    assert tail_of(tmp_path / "none", 3, 300, str) == ""


SECRET = "s3cret-of-" + "the-cluster" * 3


@pytest.mark.parametrize(
    "log",
    [
        f"key {SECRET} {'y' * 270}",  # the cut to 300 characters is within it
        f"{SECRET}{' ' * (16_384 - 20)}\nlast",  # that of the file is
        f"key {SECRET[:20]}\x1b[0m{SECRET[20:]} {'y' * 270}",
    ],
)
def test_a_secret_is_masked_before_the_cut(tmp_path: Path, log: str) -> None:
    """No part of it remains, since a part is not recognized."""
    file = tmp_path / "log"
    file.write_text(log)
    tail = tail_of(file, 3, 300, Redactor([SECRET]).clean)
    assert tail.endswith(("y", "last"))
    assert not any(SECRET[at : at + 6] in tail for at in range(len(SECRET) - 5))


@pytest.mark.processes
def test_the_tail_of_a_child_is_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the secrets that the log masks."""

    async def scenario() -> str:
        script = f"printf '%s %s' '{SECRET}' '{'y' * 280}'"
        child = await Child.start("x", ["/bin/sh", "-c", script], {}, lambda: tmp_path / "log")
        await child.wait()
        return child.end_sentence(1)

    monkeypatch.setattr("agent.record.log._log._redactor", Redactor([SECRET]))
    sentence = anyio.run(scenario)
    assert sentence.endswith("y")
    assert SECRET[-15:] not in sentence
