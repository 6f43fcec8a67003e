"""Whether this machine allows a lab; if not, the reason in one sentence."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

TOOLS = {"ip": "iproute2", "dnsmasq": "dnsmasq-base"}
PROBE_TIMEOUT = 20.0
# A lab's operations in small, in namespaces that end with the probe.
PROBE = """
import sys
sys.path.insert(0, sys.argv[1])
import os
from tools.lab import launch
launch.unshare("net", "mnt", "uts", "ipc", "pid")
launch.mount("none", "/", flags=launch.MS_REC | launch.MS_PRIVATE)
launch.mount("tmpfs", "/run", "tmpfs")
if os.fork() == 0:
    launch.mount("proc", "/proc", "proc")
    os._exit(0)
if os.wait()[1]:
    raise OSError("a proc file system cannot be mounted")
os.execvp("ip", ["ip", "-batch", "-"])
"""
LINKS = "link add lab type bridge\nlink add port0 type veth peer name podnet1\n"


@functools.cache
def missing() -> str | None:
    """Return one sentence why a lab cannot run here, or None if it can."""
    if sys.platform != "linux":
        return f"the pod lab needs Linux, this is {sys.platform}"
    if os.geteuid() != 0:
        return "the pod lab needs root, to make network namespaces"
    extend_path()
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    if absent:
        packages = " ".join(TOOLS[tool] for tool in absent)
        return f"the pod lab needs {' and '.join(absent)} (Debian packages: {packages})"
    return _refusal()


def extend_path() -> None:
    """Add the system's tools to PATH: some shells lack the sbin folders."""
    path = os.environ.get("PATH", os.defpath).split(os.pathsep)
    more = [folder for folder in ("/usr/sbin", "/sbin", "/usr/bin", "/bin") if folder not in path]
    os.environ["PATH"] = os.pathsep.join([*path, *more])


def _refusal() -> str | None:
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", PROBE, str(Path(__file__).parents[2])],
            input=LINKS,
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"the pod lab's probe of namespaces did not end within {PROBE_TIMEOUT:g} s"
    if done.returncode == 0:
        return None
    last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    return f"the pod lab may not make namespaces, mounts or links here: {last}"
