"""Start the agent from the one file: `__main__.py` of its archive.

It unpacks the agent and its libraries for this Python into a private folder on the node's local
disk, unless a former start did, and executes the agent. Python 3.6 and newer can read this file, so
that an old Python ends with an error message, or starts a newer one.
"""


# pathlib costs 10 ms at each start, what the first start alone needs is imported there, and Python
# 3.6 has no newer syntax.
# ruff: noqa: PLC0415, PTH100, PTH101, PTH102, PTH103, PTH104, PTH108, PTH110
# ruff: noqa: PTH116, PTH118, PTH119, PTH120, PTH123, PTH208, PTH211, UP031

import contextlib
import errno
import fcntl
import os
import stat
import sys
import time
import zlib

PARENTS = ("/tmp", "/var/tmp", "/dev/shm")
"""Where the private folder is made: the first usable one.

The order is the same on every node, and independent of `TMPDIR`: a Ray job uses paths in this
folder on all nodes.
"""
DAY = 86_400
KEPT_DAYS = 14
"""A version unused for this long is removed when another one is unpacked."""
COMPLETE = ".complete"
WRONG_SETTINGS = 78


class UnusableError(Exception):
    """A folder cannot be used; the message has the reason."""


def main() -> None:
    """Unpack and execute the agent."""
    archive = os.path.dirname(os.path.abspath(__file__))
    minors = _pythons_of_this_machine()
    _choose_python(archive, minors)
    _check_glibc()
    digest = _member("digest").decode()
    problems = []
    for parent in PARENTS:
        try:
            home = os.path.join(_private_folder(parent), digest)
            python = _unpacked(archive, home)
            break
        except (OSError, UnusableError) as error:
            problems.append("%s: %s" % (parent, error))
    else:
        fail(
            "there is no folder to unpack into (%s)" % "; ".join(problems),
            "Give one of them 150 MB, on a file system that is writable and not `noexec`",
        )
    program = os.path.join(home, "agent", "__main__.py")
    os.execv(python, [python, "-I", program, *sys.argv[1:]])  # noqa: S606 - becomes the agent


def _leave(number: int, _frame: object) -> None:
    os._exit(130 if number == 2 else 143)


def fail(what: str, remedy: str) -> None:
    """End with an error message."""
    sys.stderr.write("pod-agent: %s. %s (exit code 78).\n" % (what, remedy))
    sys.stderr.flush()
    os._exit(WRONG_SETTINGS)


def _member(name: str) -> bytes:
    return __loader__.get_data(os.path.join(__loader__.archive, name))  # type: ignore[name-defined,no-any-return]


# --- which Python ------------------------------------------------------------------------------


def _pythons_of_this_machine() -> "list[int]":
    """Return the minor versions of Python 3 for which the file has libraries on this machine."""
    system, machine = sys.platform, os.uname().machine
    targets = _member("targets").decode().split()
    minors = [
        int(target[len("cp3") : target.index("-")])
        for target in targets
        if system == "linux" and target.endswith("-" + machine)
    ]
    if not minors:
        fail(
            "this is %s on %s, and the file is for Linux with %s"
            % (system, machine, ", ".join(targets)),
            "On a Mac or Windows, for `init`, `recipe`, `recipes` and `env`: pip install the wheel."
            " On Linux: a file for this machine (./scripts/build --for)",
        )
    return sorted(minors, reverse=True)


def _choose_python(archive: str, minors: "list[int]") -> None:
    """Execute another Python on PATH if the file has no libraries for this one."""
    is_python_3 = sys.version_info[0] == 3 and sys.implementation.name == "cpython"
    if is_python_3 and sys.version_info[1] in minors:
        return
    import shutil
    import subprocess

    question = "import sys; print(sys.implementation.name, *sys.version_info[:2])"
    for minor in minors:
        found = shutil.which("python3.%d" % minor)
        if found is None:
            continue
        # A version manager has a command for each Python, also for those that are disabled.
        asked = subprocess.run(
            [found, "-I", "-S", "-c", question],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        if asked.stdout.split() == [b"cpython", b"3", str(minor).encode()]:
            os.execv(found, [found, "-I", "-S", archive, *sys.argv[1:]])  # noqa: S606 - same program
    wanted = " or ".join("python3.%d" % minor for minor in reversed(minors))
    fail(
        "%s is %s %s, and there is no %s on PATH"
        % (sys.executable, sys.implementation.name, _own_version(), wanted),
        "Put one of them on PATH, or run: /path/to/python3 %s" % archive,
    )


def _check_glibc() -> None:
    """Refuse a system whose C library is another one, or too old for the libraries."""
    needed = tuple(map(int, _member("glibc").split(b".")))
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (OSError, ValueError):
        name, version = "", ""
    if name != "glibc":
        fail("this system has no glibc (Alpine?)", "Take an image of Debian, Ubuntu, RHEL or kin")
    if tuple(map(int, version.split("."))) < needed:
        wanted = ".".join(map(str, needed))
        fail("glibc %s is too old" % version, "Take an image with glibc %s or newer" % wanted)


def _own_version() -> str:
    return "%d.%d.%d" % sys.version_info[:3]


def _base_python() -> str:
    """Return the file of this Python's installation; inside an environment, of the base's."""
    python = sys.executable
    for _ in range(8):
        folder = os.path.dirname(python)
        try:
            with open(os.path.join(os.path.dirname(folder), "pyvenv.cfg")) as file:
                lines = [line.partition("=") for line in file]
        except OSError:
            break
        homes = [value.strip() for key, _, value in lines if key.strip() == "home"]
        if not homes:
            break
        named = os.path.join(homes[0], os.path.basename(python))
        python = named if os.path.exists(named) else os.path.join(homes[0], "python3")
    return os.path.realpath(python)


# --- the private folder ------------------------------------------------------------------------


def _private_folder(parent: str) -> str:
    """Make this user's folder; refuse one that others can reach or could have made."""
    above = os.stat(parent)
    if above.st_mode & 0o022 and not above.st_mode & stat.S_ISVTX:
        raise UnusableError("others may rename what is in it")
    if os.statvfs(parent).f_flag & os.ST_NOEXEC:
        raise UnusableError("mounted noexec")
    folder = os.path.join(parent, "pod-agent-%d" % os.geteuid())
    _make_own(folder)
    return folder


def _make_own(folder: str) -> None:
    """Make a folder, or close a former one to others; refuse one in which others could write."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise UnusableError("%s is not a folder of this user" % folder)
    if found.st_mode & 0o022:  # its programs may be theirs
        raise UnusableError("others could write in %s: remove it" % folder)
    if found.st_mode & 0o077:
        os.chmod(folder, 0o700)


def _unpacked(archive: str, home: str) -> str:
    """Return the Python of the environment in `home`, made if it is missing."""
    _make_own(home)
    # Held as long as the agent runs: systemd-tmpfiles and this file skip a locked folder.
    in_use = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    fcntl.flock(in_use, fcntl.LOCK_SH)
    os.set_inheritable(in_use, True)  # noqa: FBT003 - takes no names
    tag = "cp%d%d-%s" % (sys.version_info[0], sys.version_info[1], os.uname().machine)
    base = _base_python()
    key = zlib.crc32(("%s\n%s" % (sys.executable, base)).encode())
    environment = os.path.join(home, "%s-%08x" % (tag, key))
    python = os.path.join(environment, "bin", "python")
    if _is_fresh(environment) and _is_fresh(home):
        return python
    lock = os.open(os.path.join(home, ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        if not (_is_fresh(environment) and _is_fresh(home)):  # else another process has made it
            _unpack(archive, home, environment, tag, base)
            _remove_unused(home)
    finally:
        os.close(lock)
    return python


def _is_fresh(folder: str) -> bool:
    """Return whether a folder was completed, or found complete, within a day.

    Programs that clean temporary folders remove single files that were not read for days.
    """
    try:
        return time.time() - os.stat(os.path.join(folder, COMPLETE)).st_mtime < DAY
    except OSError:
        return False


def _unpack(archive: str, home: str, environment: str, tag: str, base: str) -> None:
    """Write every missing file, which also completes an interrupted or cleaned folder."""
    import json
    import signal
    import zipfile

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # PID 1 would ignore them
        signal.signal(number, _leave)
    contents = json.loads(_member("contents.json").decode())
    version = "%d.%d" % sys.version_info[:2]
    libraries = os.path.join(environment, "lib", "python" + version, "site-packages")
    with zipfile.ZipFile(archive) as file:
        _unpack_wheel(file, contents["agent"], home)
        for wheel in contents["targets"][tag]:
            _unpack_wheel(file, wheel, libraries)
    _write(
        os.path.join(environment, "pyvenv.cfg"),
        (
            "home = %s\ninclude-system-site-packages = false\nversion = %s\n"
            % (os.path.dirname(base), _own_version())
        ).encode(),
    )
    # If no `ray` is on PATH, Ray of the Python that runs this file is used.
    _write(os.path.join(environment, "started-by"), sys.executable.encode())
    _write(os.path.join(home, "unpacked-from"), archive.encode())  # `init` copies it
    os.makedirs(os.path.join(environment, "bin"), 0o700, exist_ok=True)
    python = os.path.join(environment, "bin", "python")
    if not os.path.lexists(python):
        os.symlink(base, python)
    for folder in (environment, home):
        with open(os.path.join(folder, COMPLETE), "w"):
            os.utime(os.path.join(folder, COMPLETE))


def _unpack_wheel(file: "zipfile.ZipFile", wheel: str, folder: str) -> None:  # type: ignore[name-defined] # noqa: F821
    """Write a wheel's files, like an installer, except its scripts."""
    import zipfile

    with file.open("wheels/" + wheel) as stored, zipfile.ZipFile(stored) as found:
        for member in found.infolist():
            name = member.filename
            root, _, rest = name.partition("/")
            if root.endswith(".data"):
                kind, _, name = rest.partition("/")
                if kind not in ("purelib", "platlib"):
                    continue
            path = os.path.join(folder, name)
            if not name.endswith("/") and not _has_size(path, member.file_size):
                _write(path, found.read(member))


def _has_size(path: str, size: int) -> bool:
    try:
        return os.stat(path).st_size == size
    except OSError:
        return False


def _write(path: str, content: bytes) -> None:
    """Write a file atomically: a process that reads the folder meanwhile sees no partial file."""
    os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
    new = "%s.%d.new" % (path, os.getpid())
    try:
        with open(new, "wb") as file:
            file.write(content)
        os.rename(new, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise


def _remove_unused(home: str) -> None:
    """Remove other versions that are neither in use nor recently used."""
    import shutil

    folder = os.path.dirname(home)
    for name in os.listdir(folder):
        other = os.path.join(folder, name)
        if other == home:
            continue
        try:
            used = os.stat(os.path.join(other, COMPLETE)).st_mtime
            handle = os.open(other, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            continue
        try:
            if time.time() - used > KEPT_DAYS * DAY:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(other, ignore_errors=True)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
        finally:
            os.close(handle)


if __name__ == "__main__":
    main()
