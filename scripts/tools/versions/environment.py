"""A virtual environment for one pair: made with pip, asked for its versions, removed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from tools.versions.results import NO_PYTHON, NO_WHEEL, NOT_INSTALLED

if TYPE_CHECKING:
    from tools.versions.pairs import Pair

REPO = Path(__file__).resolve().parents[3]
FOLDER = REPO / ".versions"
INSTALL_LIMIT = 420.0
ASK_LIMIT = 60.0
LONGEST = 200


class CannotMakeError(Exception):
    """This pair has no environment here: the entry for the table, and the reason."""

    def __init__(self, word: str, what: str) -> None:
        super().__init__(what)
        self.word = word
        self.what = what


def make(pair: Pair, log: Path) -> Path:
    """Make the pair's environment with the agent of this checkout; return its folder."""
    python = shutil.which(f"python{pair.python}")
    if python is None:
        raise CannotMakeError(NO_PYTHON, f"no python{pair.python} on PATH")
    folder = FOLDER / f"{pair.ray}-{pair.python}"
    remove(folder)
    try:
        run([python, "-m", "venv", str(folder)], log)
        pip = [str(folder / "bin/python"), "-m", "pip", "install", "--disable-pip-version-check"]
        # Ray exists as wheels only; and compat: a plain path entry, as in scripts/setup
        flags = ["--only-binary=ray", "--config-settings", "editable_mode=compat"]
        run([*pip, "--quiet", *flags, pair.requirement, "--editable", str(REPO)], log)
    except CannotMakeError:
        remove(folder)  # a partial environment is useless; the usual cause is a missing wheel
        raise
    return folder


def remove(folder: Path) -> None:
    """Remove an environment, which takes half a gigabyte."""
    if folder.exists():
        shutil.rmtree(folder)


def versions_of(folder: Path) -> tuple[str, str]:
    """Return the versions of Ray and Python in an environment, from its agent."""
    asked = subprocess.run(
        [folder / "bin/pod-agent", "--version"],
        capture_output=True,
        text=True,
        timeout=ASK_LIMIT,
        check=False,
    )
    match = re.fullmatch(r"pod-agent \S+, Python (\S+), Ray (\S+)", asked.stdout.strip())
    if match is None:
        said = (asked.stderr.strip().splitlines() or [asked.stdout.strip()])[-1]
        raise CannotMakeError(NOT_INSTALLED, f"the agent does not start there: {said[:LONGEST]}")
    return match[2], match[1]


def run(argv: list[str], log: Path) -> None:
    """Run one step of the setup; its output goes to the log."""
    with log.open("ab") as sink:
        begins = sink.tell()
        try:
            done = subprocess.run(
                argv, stdout=sink, stderr=subprocess.STDOUT, timeout=INSTALL_LIMIT, check=False
            )
        except subprocess.TimeoutExpired:
            what = f"{Path(argv[0]).name} was not done within {INSTALL_LIMIT:g} s"
            raise CannotMakeError(NOT_INSTALLED, what) from None
    if done.returncode != 0:
        with log.open("rb") as source:
            source.seek(begins, os.SEEK_SET)
            raise refusal(source.read().decode(errors="replace"))


def refusal(said: str) -> CannotMakeError:
    """Distinguish a pair without wheels from a failed installation, by pip's messages."""
    errors = [line for line in said.splitlines() if line.startswith(("ERROR", "Error"))]
    if any(re.search(r"No matching distribution found for ray\b", line) for line in errors):
        return CannotMakeError(NO_WHEEL, "")
    last = (errors or said.strip().splitlines() or ["no message"])[-1]
    return CannotMakeError(NOT_INSTALLED, last[:LONGEST])
