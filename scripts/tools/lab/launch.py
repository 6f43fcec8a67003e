"""Enter a pod: create or join its namespaces, then run one command there.

The lab runs this file as a script, one process for each command. A binary such as unshare does
nearly the same, but hides the child's PID, exits differently when a signal kills the child, and
leaves the child running when the lab is killed.

Protocol: standard input has one line, the Spec as JSON, and then serves as the lifeline: when it
closes, the lab is gone and the command is killed. Reports are JSON lines on the descriptor in
argv[1]: first `pid`, `pidns` and `at` (or `error`), at the end `status` and `at`. Times are
monotonic.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import sys
import time
from typing import NoReturn, TypedDict

NAMESPACES = {
    "net": 0x40000000,
    "uts": 0x04000000,
    "ipc": 0x08000000,
    "pid": 0x20000000,
    "mnt": 0x00020000,  # last: from here on /proc is the pod's
}
MS_BIND, MS_MOVE, MS_REC, MS_PRIVATE = 4096, 8192, 16384, 1 << 18
PR_SET_PDEATHSIG = 1
CANNOT_START = 125

_libc = ctypes.CDLL(None, use_errno=True)


class Mount(TypedDict):
    """One mount to make: `kind` is bind, place (a bind that makes its target), move or a type.

    `folder` is no mount: it makes the target for later ones.
    """

    kind: str
    source: str
    target: str
    options: str


class Spec(TypedDict, total=False):
    """The command, and its namespaces: new (hostname) or existing (netns, target).

    With `root`, that folder becomes the root of the file system once all mounts are made.
    """

    argv: list[str]
    env: dict[str, str]
    cwd: str
    netns: str
    target: int
    hostname: str
    mounts: list[Mount]
    root: str


def setns(path: str, kind: str) -> None:
    """Move the calling thread into the namespace at the path."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _call("setns", fd, NAMESPACES[kind])
    finally:
        os.close(fd)


def unshare(*kinds: str) -> None:
    """Create namespaces for the calling thread ("pid": for its next children)."""
    _call("unshare", sum(NAMESPACES[kind] for kind in kinds))


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Mount by the system call, without the defaults of a binary and /etc/mtab."""
    _call(
        "mount",
        source.encode(),
        target.encode(),
        kind.encode() or None,
        ctypes.c_ulong(flags),
        options.encode() or None,
    )


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}{arguments}: {os.strerror(code)}")


def _make(step: Mount) -> None:
    kind, source, target = step["kind"], step["source"], step["target"]
    if kind == "place":
        _make_room(source, target)
    if kind == "folder":
        os.makedirs(target)  # noqa: PTH103 - see _make_room
    elif kind in {"bind", "place"}:
        mount(source, target, flags=MS_BIND | MS_REC)
    elif kind == "move":
        mount(source, target, flags=MS_MOVE)
    else:
        mount(source, target, kind, options=step["options"])


def _make_room(source: str, target: str) -> None:
    if os.path.isdir(source):  # noqa: PTH112 - importing pathlib would cost each start 10 ms
        os.makedirs(target, exist_ok=True)  # noqa: PTH103 - same
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)  # noqa: PTH103, PTH120 - same
    os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))


def _settle(spec: Spec) -> None:
    """Set up the child's namespaces, mounts and folder for its command."""
    if "target" in spec:
        for fd, kind in _open_all(spec["target"]):
            _call("setns", fd, NAMESPACES[kind])
    if "netns" in spec:
        setns(spec["netns"], "net")
    if "hostname" in spec:
        unshare("mnt", "uts", "ipc")
        socket.sethostname(spec["hostname"])
        mount("none", "/", flags=MS_REC | MS_PRIVATE)
        for step in spec["mounts"]:
            _make(step)
        if "root" in spec:
            _take_for_root(spec["root"])
    os.chdir(spec["cwd"])


def _take_for_root(folder: str) -> None:
    """Mount a folder over the root, also for processes that enter the namespace later."""
    os.chdir(folder)
    mount(folder, "/", flags=MS_MOVE)
    os.chroot(".")


def _open_all(pid: int) -> list[tuple[int, str]]:
    kinds = [kind for kind in NAMESPACES if kind != "pid"]
    return [(os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC), kind) for kind in kinds]


def _default_signals() -> None:
    """Reset the signal handling inherited from Python and its parents, as in a real container."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(number) is not signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _become(spec: Spec, trouble: int) -> NoReturn:
    """Replace the forked child by the command; does not return."""
    try:
        _call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.setsid()
        os.umask(0o022)
        _settle(spec)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        _default_signals()
    except BaseException as problem:  # noqa: BLE001 - whatever it is, the lab must hear of it
        os.write(trouble, f"{type(problem).__name__}: {problem}".encode())
        os._exit(CANNOT_START)
    try:
        os.closerange(3, trouble)
        os.closerange(trouble + 1, 1024)
        os.execvpe(spec["argv"][0], spec["argv"], spec["env"])  # noqa: S606 - no shell wanted
    except OSError as problem:
        os.write(2, f"cannot run {spec['argv'][0]}: {problem.strerror}\n".encode())
        os._exit(127 if isinstance(problem, FileNotFoundError) else 126)


def _start(spec: Spec) -> tuple[int, str]:
    """Fork the command; return its PID after its exec, or the error."""
    if "hostname" in spec:
        unshare("pid")
    elif "target" in spec:
        setns(f"/proc/{spec['target']}/ns/pid", "pid")
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        _become(spec, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        return pid, pipe.read().decode()


def _see_through(pid: int) -> int:
    """Wait for the command, or kill it when the lifeline closes; return a shell's exit code."""
    child = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(child, select.POLLIN)
    poll.register(0, select.POLLIN)
    while child not in (ready := [fd for fd, _ in poll.poll()]):
        if 0 in ready:
            poll.unregister(0)
            signal.pidfd_send_signal(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main() -> int:
    """Run one command as the Spec on standard input describes."""
    report = os.fdopen(int(sys.argv[1]), "w", buffering=1)
    os.set_inheritable(report.fileno(), False)  # noqa: FBT003 - the standard library's signature
    spec: Spec = json.loads(sys.stdin.buffer.readline())
    try:
        pid, trouble = _start(spec)
    except OSError as problem:
        pid, trouble = 0, str(problem)
    if trouble:
        report.write(json.dumps({"error": trouble}) + "\n")
        return 1
    pidns = os.readlink(f"/proc/{pid}/ns/pid")  # noqa: PTH115 - see _make_room
    report.write(json.dumps({"pid": pid, "pidns": pidns, "at": time.monotonic()}) + "\n")
    code = _see_through(pid)
    status = code if code >= 0 else 128 - code
    report.write(json.dumps({"status": status, "at": time.monotonic()}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
