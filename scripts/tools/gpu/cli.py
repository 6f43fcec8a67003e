"""The command line: make the folder that travels, or run the parts from it.

`run` first makes an environment from the folder over the machine's own Python, then starts itself
again in it. Until then only the standard library is there.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from tools.gpu import overlay

if TYPE_CHECKING:
    from collections.abc import Sequence

REPO = Path(__file__).resolve().parents[3]
FOLDER = REPO / ".gpu"
SECONDS = 390.0
"""A run takes less than seven minutes even where its last part does not end by itself."""
EPILOG = """\
`pack` needs a package index that pip knows; the folder has wheels only, 40 MB at most. `run` needs
no network: a Python with torch, transformers, accelerate, pyarrow and nvidia-ml-py as `python3`.
The parts: machine, preflight, training, memory, compile, hang; second-start only if it is named
with --only. A part that fails or takes too long ends alone. `run` prints one JSON object, and
writes it as gpu.json with the logs to $OUT if it is set. Without a GPU the parts run on CPUs as far
as they can.

exit codes: 0; 1 if a part failed or a wheel is missing
"""


def make_parser() -> argparse.ArgumentParser:
    """Build the argument parser."""
    parser = argparse.ArgumentParser(
        prog="scripts/gpu",
        description="Try the agent on a machine with one NVIDIA GPU and no network.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="{pack,run}")
    pack = verbs.add_parser("pack", help="make the folder that travels")
    pack.add_argument("--python", default="3.12", metavar="3.N", help="default 3.12")
    run = verbs.add_parser("run", help="run the parts")
    again = verbs.add_parser("parts")
    for one in (run, again):
        one.add_argument("--only", type=names, default=(), metavar="A,B", help="only these parts")
        one.add_argument(
            "--seconds", type=float, default=SECONDS, metavar="T", help=f"default {SECONDS:g}"
        )
        one.add_argument(
            "--scale", type=float, default=1.0, help="multiplies every limit, for slow machines"
        )
    for one in (pack, run):
        one.add_argument("--folder", type=Path, default=FOLDER, help="default: .gpu")
    again.add_argument("--began", type=float, required=True, help=argparse.SUPPRESS)
    again.add_argument("--work", type=Path, required=True, help=argparse.SUPPRESS)
    return parser


def names(text: str) -> tuple[str, ...]:
    """Read names with commas between."""
    return tuple(one.strip() for one in text.split(",") if one.strip())


def main(argv: Sequence[str] | None = None) -> int:
    """Do what is asked."""
    words = sys.argv[1:] if argv is None else list(argv)
    options = make_parser().parse_args(words)
    if options.verb == "pack":
        from tools.gpu import pack  # noqa: PLC0415 - needs packages that the GPU's machine lacks

        return pack.main(options.folder, options.python)
    if options.verb == "run":
        start_in_overlay(options)
    from tools.gpu import running  # noqa: PLC0415 - needs the packed libraries

    return running.main(options.work, options.only, options.began, options.seconds, options.scale)


def start_in_overlay(options: argparse.Namespace) -> NoReturn:
    """Make the environment, and become the program that runs the parts in it."""
    began = time.time()
    work = Path(tempfile.mkdtemp(prefix="pod-agent-gpu-"))
    try:
        python = overlay.make(work / "python", options.folder)
    except overlay.OverlayError as error:
        sys.exit(f"scripts/gpu: {error}")
    path = os.pathsep.join([str(python.parent), os.environ.get("PATH", os.defpath)])
    words = ["--began", str(began), "--work", str(work)]
    words += ["--seconds", str(options.seconds), "--scale", str(options.scale)]
    words += ["--only", ",".join(options.only)]
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(REPO / "scripts")}
    os.chdir(work)  # the agent of the packed wheel is meant, not the folder `agent` here
    os.execve(python, [str(python), "-m", "tools.gpu", "parts", *words], env)  # noqa: S606 - the same program goes on, in another Python
