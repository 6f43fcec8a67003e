"""Record the libraries of an image's Python, and check later that none of them changed.

python moved.py note FILE     records its distributions, the files of torch, CUDA and Ray, and the
                              system's packages
python moved.py check FILE    compares; returns 1 with one line for each change. New distributions
                              are printed and allowed.

The image's Python runs this file, so it uses only the standard library.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
import sys
from pathlib import Path

GUARDED = re.compile(r"(torch|triton|pytorch-triton|ray|nvidia-.*|cuda-.*|rocm.*)")
"""Distributions whose files are compared byte by byte, not only by version."""
SHOWN = 20
DPKG = re.compile(r"^(Package|Architecture|Status|Version): (.*)$", re.MULTILINE)

State = dict[str, dict[str, str]]


def state() -> State:
    """Return everything that must not change: kind, name, and a hash of its content."""
    first: dict[str, importlib.metadata.Distribution] = {}
    for found in importlib.metadata.distributions():  # in the order in which imports search
        if found.metadata["Name"]:
            first.setdefault(re.sub(r"[-_.]+", "-", found.metadata["Name"]).lower(), found)
    files: dict[str, str] = {}
    for name, distribution in first.items():
        if GUARDED.fullmatch(name):
            files |= _contents(distribution)
    return {
        "Python": {sys.executable: sys.version.partition(" (")[0]},
        "distribution": {name: found.version for name, found in sorted(first.items())},
        "file": files,
        "system package": _dpkg(Path("/var/lib/dpkg/status")),
        "conda package": _conda(Path(sys.prefix) / "conda-meta"),
    }


def _contents(distribution: importlib.metadata.Distribution) -> dict[str, str]:
    """Return each installed file's digest; compiled ones may come and go with their source."""
    listed = (path for path in distribution.files or () if "__pycache__" not in path.parts)
    paths = (Path(str(distribution.locate_file(path))) for path in listed)
    return {str(path): _digest(path) for path in paths if path.is_file()}


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _dpkg(status: Path) -> dict[str, str]:
    if not status.is_file():
        return {}
    found = {}
    for paragraph in status.read_text(encoding="utf-8", errors="replace").split("\n\n"):
        field = dict(DPKG.findall(paragraph))
        if field.get("Status", "").endswith(" installed"):
            found[f"{field['Package']}:{field.get('Architecture', '')}"] = field["Version"]
    return found


def _conda(meta: Path) -> dict[str, str]:
    return {path.stem: "installed" for path in sorted(meta.glob("*.json"))}


def moves(before: State, after: State) -> list[str]:
    """Return a line for each item that has changed or is missing."""
    lines = []
    for kind, things in before.items():
        for name, was in things.items():
            now = after.get(kind, {}).get(name)
            if now is None:
                lines.append(f"{kind} {name} is gone")
            elif now != was:
                change = "has other content" if kind == "file" else f"was {was}, is {now}"
                lines.append(f"{kind} {name} {change}")
    return lines


def additions(before: State, after: State) -> list[str]:
    """Return the new distributions."""
    was = before["distribution"]
    return [f"{n} {version}" for n, version in after["distribution"].items() if n not in was]


def check(before: State, after: State) -> int:
    """Print the changes, or that there are none."""
    lines = moves(before, after)
    if lines:
        print("moved: this image is not what it was below the agent's layer:", file=sys.stderr)
        more = len(lines) - SHOWN
        rest = [f"and {more} more"] if more > 0 else []
        print("\n".join(f"  {line}" for line in [*lines[:SHOWN], *rest]), file=sys.stderr)
        return 1
    counts = ", ".join(f"{len(things)} {kind}(s)" for kind, things in before.items() if things)
    print(f"nothing moved: {counts}; new: {', '.join(additions(before, after)) or 'nothing'}")
    return 0


def main(arguments: list[str]) -> int:
    """Note or check, by the first argument."""
    if len(arguments) != 2 or arguments[0] not in {"note", "check"}:
        print(__doc__, file=sys.stderr)
        return 2
    file = Path(arguments[1])
    if arguments[0] == "note":
        file.write_text(json.dumps(state()), encoding="utf-8")
        return 0
    before: State = json.loads(file.read_text(encoding="utf-8"))
    return check(before, state())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
