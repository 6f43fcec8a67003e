"""torchrun with a real torch, on CPUs: the scenarios of tests/lab/test_torchrun_real.py."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import tools.lab as podlab
from tools.frameworks.packages import REPO, environment
from tools.frameworks.training import LONGEST, NotTrainedError

SCENARIOS = "tests/lab/test_torchrun_real.py"
LIMIT = 1200.0
ENDS = re.compile(r"^(\d+) passed in ", re.MULTILINE)


def torchrun_on_pods() -> str:
    """Run them with the suite's torch; return how many passed. A skipped one is an error."""
    if (reason := podlab.missing()) is not None:
        raise NotTrainedError(reason)
    env = {**os.environ, "POD_AGENT_TORCH_PYTHON": str(environment("train"))}
    argv = [sys.executable, "-m", "pytest", SCENARIOS]
    try:
        done = subprocess.run(
            argv, cwd=REPO, env=env, capture_output=True, text=True, timeout=LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        raise NotTrainedError(f"{SCENARIOS} did not end within {LIMIT:g} s") from None
    held = ENDS.search(done.stdout)
    if done.returncode != 0 or held is None:
        raise NotTrainedError(f"{SCENARIOS}: {done.stdout.strip()[-LONGEST:]}")
    return (
        f"AGENT_LAUNCHER=torchrun with torch on 2 and 3 pods: all {held[1]} scenarios of "
        f"{SCENARIOS} hold"
    )
