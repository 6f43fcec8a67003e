"""Install the agent over a framework's image: the Dockerfile calls it once in each stage.

install.py agent HOME [PYTHON]   make HOME, the agent's environment, beside the image's PYTHON
install.py ray HOME VERSION      install the missing parts of Ray into that Python, and check that
                                 no library changed

The agent's libraries are in a separate environment, so the framework's libraries stay unchanged.
The agent's libraries are pinned by their digests, and so is Ray in a Python without a framework;
over a framework, the framework's versions are the constraints.
It uses only the standard library, so that any Python of an image can run it.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parents[2]
PINS = SOURCE / "requirements"
OLDEST = (3, 10)
EXACT = re.compile(r"\d[\w.+!-]*")
USER, UID = "pod-agent", "10001"
BARE = {"pip", "setuptools", "wheel"}
"""What a Python has that nobody installed a framework into."""
HASHED = ("--require-hashes", "--requirement")
QUIET = {
    "PIP_NO_CACHE_DIR": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_ROOT_USER_ACTION": "ignore",
    # Debian guards its Python against pip; here the constraints and the check do that.
    "PIP_BREAK_SYSTEM_PACKAGES": "1",
}


def fail(what: str, remedy: str) -> NoReturn:
    """Fail the build with the error and the remedy."""
    print(f"pod-agent's layer: {what}. {remedy}.", file=sys.stderr)
    sys.exit(1)


def run(what: str, remedy: str, *argv: str | Path) -> None:
    """Run a command; its failure ends the build."""
    done = subprocess.run(
        [str(word) for word in argv],
        env={**os.environ, **QUIET},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    print(done.stdout, end="", flush=True)
    if done.returncode != 0:
        fail(what, remedy)


def output_of(python: str | Path, code: str) -> list[str]:
    """Run a script in a Python; return its output lines."""
    done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def note(python: str, home: Path) -> None:
    """Record the state of the image's Python before any change."""
    home.mkdir(parents=True)
    shutil.copytree(HERE, home / "layer", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PINS / "ray.txt", home / "layer")
    (home / "ray-python").write_text(python)
    what, remedy = f"{python} does not run", "Name the image's Python: --build-arg PYTHON=/its/path"
    run(what, remedy, python, HERE / "moved.py", "note", home / "base.json")


def make_environment(python: str, home: Path) -> Path:
    """Make the agent's environment (Debian's Python has no pip for it); return its Python."""
    whole = subprocess.run([python, "-c", "import ensurepip"], capture_output=True, check=False)
    options = [] if whole.returncode == 0 else ["--without-pip"]
    what, remedy = f"`{python} -m venv` failed", "Give it a whole `venv`: python3-venv on Debian"
    run(what, remedy, python, "-m", "venv", *options, home)
    return home / "bin" / "python"


def pip_for(python: str | Path, *others: str | Path) -> list[str | Path]:
    """Return a pip that installs into a Python: its own, or another Python's."""
    hosts: list[str | Path] = [python, *others, shutil.which("python3") or sys.executable]
    for host in hosts:
        asked = subprocess.run([host, "-m", "pip", "--version"], capture_output=True, check=False)
        if asked.returncode == 0:
            target = [] if host == python else ["--python", python]
            return [
                host,
                "-m",
                "pip",
                *target,
                "install",
                "--progress-bar=off",
                "--no-warn-conflicts",
            ]
    fail(f"no pip for {python}", "Install pip, 22.3 or newer, for the image's Python")


def install_agent(home: Path, given: str | None) -> None:
    """Make the agent's environment and install the agent into it, without Ray."""
    sys.path.insert(0, str(SOURCE))
    from agent.node.python_facts import of_command  # noqa: PLC0415 - found only now

    python = given or of_command("ray", os.environ.get("PATH")) or sys.executable
    note(python, home)
    version = output_of(python, "import sys; print('%d.%d' % sys.version_info[:2])")[0]
    pinned = pinned_libraries(version)
    for theirs in ("PYTHONPATH", "PIP_CONSTRAINT"):  # these are for the framework's libraries
        os.environ.pop(theirs, None)
    own = make_environment(python, home)
    pip = pip_for(own, python)
    remedy = "See pip's words above"
    with tempfile.TemporaryDirectory() as backend:
        what = "the agent could not be built"
        run(what, remedy, *pip, *HASHED, PINS / "build.txt", "--target", backend)
        os.environ["PYTHONPATH"] = backend
        run(what, remedy, *pip, "--no-deps", "--no-build-isolation", SOURCE)
        del os.environ["PYTHONPATH"]
    file = home / "layer" / "libraries.txt"
    file.write_text("\n".join(pinned))
    run("the agent's libraries could not be installed", remedy, *pip, *HASHED, file)
    # Isolated: the agent ignores the framework's PYTHONPATH.
    script = home / "bin" / "pod-agent"
    script.write_text(
        f"#!{own} -I\nimport sys\n\nfrom agent.__main__ import main\n\nsys.exit(main())\n"
    )
    script.chmod(0o755)


def pinned_libraries(version: str) -> list[str]:
    """Return the one file's libraries for a Python on this machine, with their digests."""
    target = f"cp{version.replace('.', '')}-{platform.machine()}"
    rows = [line.split() for line in (PINS / "onefile.txt").read_text().splitlines()]
    rows = [row for row in rows if row and row[0] != "#"]
    known = {target for _, _, *targets in rows for target in targets} - {"all"}
    if target not in known:
        fail(
            f"{target} has no libraries with digests in requirements/onefile.txt",
            f"It has them for {', '.join(sorted(known))}: name such a Python, --build-arg PYTHON=…,"
            " or add this one by ./scripts/build --lock",
        )
    found = []
    for sha256, file, *targets in rows:
        if target in targets or targets == ["all"]:
            name, exact = file.split("-")[:2]
            found.append(f"{name}=={exact} --hash=sha256:{sha256}")
    return found


def distributions(home: Path) -> dict[str, str]:
    """Return the distributions that the image's Python had, with their versions."""
    noted: dict[str, str] = json.loads((home / "base.json").read_text())["distribution"]
    return noted


def constraints(home: Path) -> Path:
    """Write the image's distributions as constraints, so that pip refuses to change them."""
    noted = distributions(home).items()
    lines = [f"{name}=={version}" for name, version in noted if EXACT.fullmatch(version)]
    file = Path(os.environ.get("TMPDIR", "/tmp")) / "pod-agent-constraints.txt"
    file.write_text("\n".join(lines))
    return file


def add_user() -> None:
    """Add an ordinary user, for platforms that can choose one; the image's own stays the default.

    A base that runs as another user than root has an ordinary one.
    """
    useradd = shutil.which("useradd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    known = subprocess.run(["id", USER], capture_output=True, check=False).returncode == 0
    if os.geteuid() != 0 or known:
        return
    if useradd is None:
        print(f"the image has no useradd: no user {USER} is added", flush=True)
        return
    words = ("--uid", UID, "--create-home", "--shell", "/bin/sh", USER)
    run(f"the user {USER} could not be added", "See useradd's words above", useradd, *words)


def complete_ray(home: Path, version: str) -> None:
    """Install Ray if the image has none, and what its `default` extra lacks; then check."""
    from agent.base.versions import release_of  # noqa: PLC0415 - same
    from agent.node.facts import OLDEST as OLDEST_RAY  # noqa: PLC0415 - same
    from agent.node.read import ask_python  # noqa: PLC0415 - from HOME

    python = (home / "ray-python").read_text()
    found = ask_python(python)
    if found.version is not None and release_of(found.version) < OLDEST_RAY:
        fail(
            f"{python} has Ray {found.version}", "The agent needs 2.40 or newer: take a newer image"
        )
    if found.version is None or found.missing:
        wanted = f"ray[default]=={found.version or version}"
        file, pinned = constraints(home), home / "layer" / "ray.txt"
        is_bare = found.version is None and distributions(home).keys() <= BARE
        as_pinned = is_bare and f"\nray=={version} " in pinned.read_text()
        words: list[str | Path] = [*HASHED, pinned] if as_pinned else ["--constraint", file, wanted]
        what = f"{wanted} does not fit beside what {python} has"
        remedy = (
            "pip's words above name the conflict; take another Ray, --build-arg RAY=…, or an image"
            " that has one"
        )
        pip = pip_for(python, home / "bin" / "python")
        run(what, remedy, *pip, *words)
        file.unlink()
    what, remedy = "the image below was changed", "Please report it with the lines above"
    run(what, remedy, python, home / "layer" / "moved.py", "check", home / "base.json")
    run("the agent does not run", remedy, home / "bin" / "pod-agent", "--version")


def main(arguments: list[str]) -> int:
    """Run the step that the first argument names."""
    if sys.version_info < OLDEST:
        found = f"{sys.executable} is Python {sys.version.split()[0]}"
        fail(found, "3.10 is the oldest: name another by --build-arg PYTHON=/its/path")
    if arguments[:1] == ["agent"] and len(arguments) in {2, 3}:
        install_agent(Path(arguments[1]), "".join(arguments[2:]) or None)
    elif arguments[:1] == ["ray"] and len(arguments) == 3:
        add_user()
        complete_ray(Path(arguments[1]), arguments[2])
    else:
        print(__doc__, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
