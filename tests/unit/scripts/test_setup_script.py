"""`scripts/setup` refuses before it installs what would only fail later."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SETUP = Path(__file__).parents[3] / "scripts" / "setup"
BAD = ["a b", "a(b", "a)b", "a'b", 'a"b', "a$b", "a`b", "a&b", "a;b", "a|b", "a<b", "a>b", "a\\b"]
BAD += ["a*b", "a?b", "a{b,c}d", "a{1..3}", "a\tb", "a\nb"]
GOOD = ["ab", "a-b_c.d", "a=b", "a%b", "a~b", "a#b", "a!b", "a[b]", "a{b}", "a,b", "a@b+c:d", "ä日"]
"""Each tried with Ray 2.60 or bash: an environment at such a path starts."""


@pytest.mark.parametrize("name", [*BAD, *GOOD])
def test_a_path_that_a_shell_takes_apart(tmp_path: Path, name: str) -> None:
    """Setup refuses paths at which Ray does not run: 78 and the path."""
    folder = tmp_path / name / "scripts"
    folder.mkdir(parents=True)
    shutil.copy(SETUP, folder)
    done = subprocess.run(
        [folder / "setup"],
        env={"PYTHON": "/bin/false", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 78
    assert (f"Ray does not run from '{tmp_path}/{name}'" in done.stderr) == (name in BAD)
    as_a_shell_reads_it = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {tmp_path}/{name}"],
        cwd=tmp_path,  # one of the names is a redirection
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    ).stdout
    if name in GOOD:
        assert as_a_shell_reads_it == f"{tmp_path}/{name}\0"
    elif name not in ("a*b", "a?b"):  # which mean themselves until something else fits them
        assert as_a_shell_reads_it != f"{tmp_path}/{name}\0"
