"""Placeholders in shell commands: no value is parsed by the shell, whatever surrounds it."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.job.services import ON_HEAD, Placeholders, PrepareStep
from support.heads import RETRIEVER_SPEC

if TYPE_CHECKING:
    from pathlib import Path

PLACE = Placeholders("10.0.0.2", "10.0.0.1", "1", "/logs/run/pod1")
EXACT = [
    'printf %s "{log_dir}"',
    'x="{log_dir}"; printf %s "$x"',
    'printf %s "$(printf %s "{log_dir}")"',
    'sh -c \'printf %s "$1"\' sh "{log_dir}"',
]
"""Commands that print the value as it is."""
LOOSE = ["echo {log_dir}", "echo `echo {log_dir}`", "cat <<E\n{log_dir}\nE", "echo '{log_dir}'"]
"""Commands in which a shell splits the value, or does not read it."""


def outputs(script: str, value: str, folder: Path | None = None) -> str:
    """Run a command as a prepare step does; return its output."""
    step = PrepareStep("x", script, ON_HEAD, 1.0)
    argv = step.argv(replace(PLACE, log_dir=value))
    spec = replace(RETRIEVER_SPEC, argv=("/bin/sh", "-c", script))
    assert spec.command(replace(PLACE, log_dir=value)) == argv
    done = subprocess.run(argv, capture_output=True, check=False, cwd=folder)
    return done.stdout.decode(errors="replace")


@pytest.mark.parametrize("script", EXACT)
@pytest.mark.parametrize(
    "value", ['/a b/it\'s "so"', "$(id)", "`id`", "a;b&c|d>e", "${x}\\n*", "'"]
)
def test_a_value_is_no_code(script: str, value: str) -> None:
    """It is printed, in any quotes and in a substitution."""
    assert outputs(script, value) == value


@pytest.mark.parametrize("script", EXACT + LOOSE)
@pytest.mark.parametrize(
    "value", ["x$(touch made)", "`touch made`", "'; touch made; '", '"; touch made; "']
)
def test_a_value_runs_nothing(script: str, value: str, tmp_path: Path) -> None:
    """Wherever the placeholder stands."""
    outputs(script, value, tmp_path)
    assert [*tmp_path.iterdir()] == []


@given(st.text(st.characters(min_codepoint=1, exclude_categories=["Cs"]), max_size=20))
def test_any_value(value: str) -> None:
    """What is in double quotes comes as it is."""
    argv = replace(PLACE, log_dir=value).shell_command('printf %s "{log_dir}"')
    assert subprocess.run(argv, capture_output=True, check=True).stdout.decode() == value


def test_an_ordinary_value_stays_readable() -> None:
    """Addresses, ranks and ordinary paths are in the command itself, as are unknown values."""
    script = "run {node_ip}:80 {head_ip} {rank} {log_dir}/x ${log_dir}"
    filled = "run 10.0.0.2:80 10.0.0.1 1 /logs/run/pod1/x ${log_dir}"
    assert PLACE.shell_command(script) == ["/bin/sh", "-c", filled]
    v6 = replace(PLACE, node_ip="fd00::2").shell_command("run http://{node_ip}:80")
    assert v6 == ["/bin/sh", "-c", "run http://[fd00::2]:80"]
    assert Placeholders().shell_command("run {rank} {log_dir}")[2:] == ["run {rank} {log_dir}"]
