"""An environment of the packed wheels over the machine's own Python and its libraries.

It is made without pip's own environment module: `ensurepip` is often missing. The libraries that
are seen are those of the Python that runs this, which may be an environment itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

INSTALL_LIMIT = 90.0
LONGEST = 600
TORCHRUN = """\
#!{python}
import sys

from torch.distributed.run import main

sys.exit(main())
"""
"""The agent takes the Python of the `torchrun` on PATH; the machine's own lacks the wheels."""


class OverlayError(Exception):
    """The environment cannot be made; the message has the reason."""


def make(place: Path, folder: Path) -> Path:
    """Install a folder's wheels into a new environment; return its Python."""
    wheels = sorted(str(one.resolve()) for one in folder.glob("*.whl"))
    if not wheels:
        raise OverlayError(f"{folder} has no wheels: run `scripts/gpu pack` and bring it here")
    venv.EnvBuilder(with_pip=False, symlinks=True).create(place)
    python = place / "bin" / "python"
    below = [one for one in sys.path if Path(one).name in {"site-packages", "dist-packages"}]
    lines = [f"import site; site.addsitedir({one!r})" for one in below]
    (libraries(place) / "machine.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")
    # the machine's pip; it leaves alone what is outside of this environment
    options = ("--no-index", "--no-deps", "--ignore-installed", "--no-compile", "--quiet")
    argv = [str(python), "-m", "pip", "install", *options, *wheels]
    env = {**os.environ, "PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    env.pop("PYTHONPATH", None)
    try:
        done = subprocess.run(
            argv, env=env, capture_output=True, text=True, timeout=INSTALL_LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        raise OverlayError(f"pip did not install the wheels in {INSTALL_LIMIT:g} s") from None
    if done.returncode != 0:
        raise OverlayError(f"pip: {done.stderr.strip()[-LONGEST:]}")
    torchrun = python.with_name("torchrun")
    torchrun.write_text(TORCHRUN.format(python=python), encoding="utf-8")
    torchrun.chmod(0o755)
    return python


def libraries(place: Path) -> Path:
    """Return the environment's folder of libraries."""
    return Path(sysconfig.get_path("purelib", "posix_prefix", {"base": str(place)}))
