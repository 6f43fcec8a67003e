"""Entry point of scripts/versions, in .venv: plays scenarios with other Rays and Pythons."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import tools.lab as podlab
from tools.versions.pairs import ALL, NEWEST, REFUSAL, Result, parse, requirement, scenarios, table

if TYPE_CHECKING:
    from io import TextIOWrapper

CANNOT = 77
REPO = Path(__file__).resolve().parents[3]
FOLDER = REPO / ".versions"
RESULTS = FOLDER / "table.json"
INSTALL_LIMIT = 420.0
EPILOG = f"""\
Pythons are found on PATH by their names (python3.10 and so on). A series stands for its last
release. Each pair gets an environment of its own under .versions, one at a time, which is removed
afterwards; results and logs stay there, and the table shows those of earlier runs too.
A pair takes one to three minutes.

examples:
  scripts/versions                          every pair
  scripts/versions 2.40/3.10 {NEWEST}/3.13    these two
  scripts/versions --table                  no runs, only the table

exit codes: 0; 1 if a pair failed; 77 if no lab can be made
"""


def make_parser() -> argparse.ArgumentParser:
    """Build the argument parser."""
    parser = argparse.ArgumentParser(
        prog="scripts/versions",
        description="Boot the agent in the pod lab with other Rays and Pythons, and again with a "
        "token, which Rays without token auth must refuse.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("pairs", nargs="*", metavar="RAY/PYTHON", help="pairs (default: all)")
    parser.add_argument("--keep", action="store_true", help="leave the environments (0.5 GB each)")
    parser.add_argument("--table", action="store_true", help="only print the stored results")
    return parser


def main() -> int:
    """Run the pairs and print the table."""
    parser = make_parser()
    options = parser.parse_args()
    try:
        for pair in options.pairs:
            parse(pair)
    except ValueError as error:
        parser.error(str(error))
    stored = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results = {pair: Result(*fields) for pair, fields in stored.items()}
    if options.table:
        print(table(results))
        return 0
    if (reason := podlab.missing()) is not None:
        print(f"scripts/versions: {reason}", file=sys.stderr)
        return CANNOT
    signal.signal(signal.SIGTERM, leave)
    FOLDER.mkdir(exist_ok=True)
    pairs = options.pairs or ALL
    for pair in pairs:
        results[pair] = attempt(pair, keep=options.keep)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        print(f"{pair}: {results[pair].said}", file=sys.stderr, flush=True)
    print(table(results))
    return int(any(results[pair].is_failure for pair in pairs))


def attempt(pair: str, *, keep: bool) -> Result:
    """Make a pair's environment, play its scenarios with it, and remove it."""
    ray, version = parse(pair)
    python = shutil.which(f"python{version}")
    if python is None:
        return Result("", "no such Python here")
    folder = FOLDER / f"{ray}-{version}"
    log = folder.with_name(f"{folder.name}.log")
    try:
        with log.open("w") as sink:
            if not install(ray, python, folder, sink):
                has_no_wheel = "No matching distribution found for ray" in log.read_text()
                said = "no wheel" if has_no_wheel else f"not installed, see {log}"
                return Result("", said, is_failure=not has_no_wheel)
            return play(folder, sink)
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def install(ray: str, python: str, folder: Path, sink: TextIOWrapper) -> bool:
    """Make an environment with the agent of this checkout; return whether that worked."""
    shutil.rmtree(folder, ignore_errors=True)
    pip = [str(folder / "bin/python"), "-m", "pip", "install", "--disable-pip-version-check"]
    # Ray exists as wheels only; and compat: a plain path entry, as in scripts/setup
    flags = ["--quiet", "--only-binary=ray", "--config-settings", "editable_mode=compat"]
    made = [
        [python, "-m", "venv", str(folder)],
        [*pip, *flags, requirement(ray), "--editable", str(REPO)],
    ]
    try:
        for argv in made:
            subprocess.run(
                argv, stdout=sink, stderr=subprocess.STDOUT, timeout=INSTALL_LIMIT, check=True
            )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        print(error, file=sink, flush=True)
        return False
    return True


def play(folder: Path, sink: TextIOWrapper) -> Result:
    """Play the scenarios; pods use agent and Ray of the folder, the lab uses this Python."""
    argv = [str(folder / "bin/pod-agent"), "--version"]
    asked = subprocess.run(argv, stdout=subprocess.PIPE, stderr=sink, text=True, check=False)
    match = re.search(r"Ray (\d\S*)", asked.stdout)
    if match is None:
        return Result("", f"the agent does not start, see {sink.name}", is_failure=True)
    env = {**os.environ, "POD_AGENT_ENVIRONMENT": str(folder), "CI": "true"}
    steps = []
    for name, test in scenarios(match[1]).items():
        began = time.monotonic()
        pytest = [sys.executable, "-m", "pytest", "-rfEs", "--tb=short", test]
        done = subprocess.run(
            pytest, env=env, cwd=REPO, stdout=sink, stderr=subprocess.STDOUT, check=False
        )
        passed = "refused" if test == REFUSAL else "ok"
        word = "failed" if done.returncode else passed
        steps.append(f"{name} {word} {time.monotonic() - began:.0f} s")
    return Result(match[1], ", ".join(steps), is_failure=any(" failed " in step for step in steps))


def leave(number: int, _frame: object) -> NoReturn:
    """Turn a stop signal into an exception, so that the environment is removed."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
