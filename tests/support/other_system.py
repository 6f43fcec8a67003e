"""Run command lines as on a Mac or Windows: without Ray and without what only POSIX has.

    python other_system.py darwin|win32

Each line of stdin is a request in JSON: `words`, `environ`, and the files `out` and `err`. Its
exit code is a line of stdout. Each runs in a fork of this process, in which nothing of the agent is
imported.

The real systems are not at hand. The standard library and the libraries of the agent, which have
wheels of their own there, are imported before anything is hidden.
"""

# ruff: noqa: F401, E402 - what is imported here must not be imported later
from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import urllib.request
from typing import TYPE_CHECKING

import aiohttp
import anyio
import msgspec
import psutil
import requests
import structlog
import yaml

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from _typeshed.importlib import MetaPathFinderProtocol

system = sys.argv[1]
fork = os.fork
hidden_modules = {"ray"}
hidden_of_os = ["memfd_create", "sched_getaffinity", "pidfd_open", "O_TMPFILE", "O_PATH"]
hidden_of_os += ["posix_fadvise", "posix_fallocate", "sched_setaffinity", "getxattr", "P_PIDFD"]
hidden_of_socket = ["TCP_USER_TIMEOUT", "TCP_KEEPIDLE", "SO_PEERCRED", "SO_BINDTODEVICE"]
hidden_files = ("/proc", "/sys", "/dev/shm")  # those of psutil stand for its own on that system
if system == "win32":
    hidden_modules |= {"fcntl", "pwd", "grp", "resource", "termios", "tty", "pty"}
    hidden_of_os += ["geteuid", "getuid", "getgid", "getegid", "fork", "setsid", "killpg", "mkfifo"]
    hidden_of_os += ["uname", "O_NOFOLLOW", "O_DIRECTORY", "O_CLOEXEC", "O_NONBLOCK"]
    hidden_of_os += ["getpgid", "WNOHANG", "confstr", "sysconf", "fchmod", "fchown", "chown"]
    hidden_of_os += ["pread", "pwrite", "getloadavg", "openpty", "register_at_fork", "nice"]
    hidden_of_socket += ["AF_UNIX", "SO_REUSEPORT", "MSG_DONTWAIT", "socketpair"]
    kept = {"SIGINT", "SIGTERM", "SIGABRT", "SIGFPE", "SIGILL", "SIGSEGV", "SIG_DFL", "SIG_IGN"}
    for name in [name for name in vars(signal) if name.startswith("SIG") and name not in kept]:
        delattr(signal, name)


class Hiding:
    """A finder of modules that finds none of the hidden ones."""

    def __init__(self, finder: MetaPathFinderProtocol) -> None:
        self._finder = finder

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module, unless it is hidden."""
        if name.partition(".")[0] in hidden_modules:
            return None
        return self._finder.find_spec(name, path, target)


def hide_files(event: str, arguments: tuple[object, ...]) -> None:
    """Let no file of Linux be opened, except by psutil."""
    if event not in {"open", "os.listdir", "os.scandir"}:
        return
    if not str(arguments[0]).startswith(hidden_files):
        return
    frame = sys._getframe(1)  # noqa: SLF001 - the caller
    while frame is not None and "/psutil/" not in frame.f_code.co_filename:
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None:
        raise FileNotFoundError(2, "No such file or directory", arguments[0])


sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]
for name in hidden_modules:
    sys.modules.pop(name, None)
for name in hidden_of_os:
    if hasattr(os, name):
        delattr(os, name)
if system == "win32":
    open_as_is = os.open

    def open_by_path(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        """Open a file, without openat."""
        if dir_fd is not None:
            raise NotImplementedError("dir_fd unavailable on this platform")
        return open_as_is(path, flags, mode)

    os.open = open_by_path  # type: ignore[assignment]
    os.supports_dir_fd.clear()

for name in hidden_of_socket:
    if hasattr(socket, name):
        delattr(socket, name)
sys.addaudithook(hide_files)
sys.platform = system

for line in sys.stdin:
    pid = fork()
    if pid == 0:
        request = json.loads(line)
        for number, name in enumerate((os.devnull, request["out"], request["err"])):
            os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
        os.environ.update(request["environ"])
        sys.argv[:] = ["pod-agent", *request["words"]]
        break
    _, status = os.waitpid(pid, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
else:
    sys.exit()

from agent.__main__ import main

sys.exit(main())
