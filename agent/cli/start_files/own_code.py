"""The code of a command of one's own: which folder holds it, and how the nodes get it.

The command itself says which files it needs: a script (`python3 train.py`), a module
(`python3 -m trainer.main`), or any other file that it names. A path that is relative must be in the
folder; an absolute one is the image's.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from agent.base.value import Value
from agent.checks.finding import Level
from agent.checks.job_needs import placeholder_slips, script_findings, unexpanded_variables
from agent.job.job import PLACEHOLDERS
from agent.node import code_archive
from agent.node.code_archive import UnpackableError, pack
from agent.node.job_script import script_lines
from agent.node.read import shell_hint

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PACK = "pack.py"
_SCRIPT = re.compile(r"[^=$~{}*]+\.(?:py|sh|bash)")
_MODULE = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*")
_SHELLS = {"bash", "sh", "zsh", "dash"}


class CodeError(ValueError):
    """The command's code is not where the user says, or cannot be sent."""


class OwnCode(Value, frozen=True):
    """The folder with the code of a command, and the archive that nodes get."""

    folder: str  # Its full path
    from_start_files: str  # The same, seen from the start files
    archive: bytes = b""  # b"" where nodes see the folder itself
    script: str = ""  # What the command starts of it
    is_here: bool = False  # It is the folder of the start files

    def packer(self) -> bytes:
        """Return the program that packs the folder again."""
        source = Path(code_archive.__file__).read_text(encoding="utf-8")
        for name, default, own in (
            ("FOLDER", ".", self.from_start_files),
            ("SCRIPT", "", self.script),
        ):
            line = f'\n{name} = "{default}"\n'
            assert line in source  # noqa: S101 - the file has it
            source = source.replace(line, f"\n{name} = {own!r}\n")
        return source.encode()


class CommandFiles(Value, frozen=True):
    """The files that a command names."""

    script: str = ""  # The first script, which must be there
    others: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()


def command_files(command: Sequence[str]) -> CommandFiles:
    """Return the scripts and modules of a command, and of a shell line in it."""
    words = [*command]
    changes_folder = False
    if len(words) > 1 and PurePosixPath(words[0]).name in _SHELLS:
        for at, word in enumerate(words[:-1]):
            if re.fullmatch(r"-[a-z]*c", word):
                words = _shell_words(words[at + 1])
                changes_folder = any(word in {"cd", "pushd"} for word in words)
                break

    scripts = [*_scripts(words)]
    others = tuple(word for word in words[1:] if not word.startswith("-") and word not in scripts)
    modules = tuple(_modules(words))
    if changes_folder:  # the paths are of another folder
        return CommandFiles("", (*scripts, *others), modules)
    return CommandFiles(scripts[0] if scripts else "", (*scripts[1:], *others), modules)


def _shell_words(line: str) -> list[str]:
    """Return the words of a shell line, without its operators."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        words = [*lexer]
    except ValueError:  # quotes that the shell will report
        words = line.split()
    return words


def _scripts(words: Sequence[str]) -> Iterator[str]:
    for at, word in enumerate(words):
        is_program = at == 0 and "/" in word and _SCRIPT.fullmatch(f"{word}.sh")
        if is_program or (not word.startswith("-") and _SCRIPT.fullmatch(word)):
            yield word


def _modules(words: Sequence[str]) -> Iterator[str]:
    for at, word in enumerate(words[:-1]):
        if word in {"-m", "--module"} and _MODULE.fullmatch(words[at + 1]):
            yield words[at + 1].partition(".")[0]


def find_code(
    command: Sequence[str], given: Path | None, start_files: Path, *, shared_disk: bool
) -> tuple[OwnCode | None, str]:
    """Return the code of a command, and a line about it; raise CodeError.

    `shared_disk`: the nodes see the folder itself, so that nothing is packed.
    """
    folder = (given or Path()).resolve()
    if not folder.is_dir():
        raise CodeError(f"--code {given}: there is no such folder")
    files = command_files(command)
    _refuse_unstartable(command, folder)
    where = f"--code {given}" if given is not None else f"this folder ({folder})"

    # Is the script there, or the image's?
    script = files.script
    is_absolute = PurePosixPath(script).is_absolute()
    if is_absolute and not shared_disk and folder in Path(script).parents and Path(script).exists():
        relative = Path(script).relative_to(folder).as_posix()
        raise CodeError(f"{script} is on this machine: name it as in its folder, {relative}")
    if script and not is_absolute and not _is_in(folder, script):
        raise CodeError(
            f"{script} is not in {where}: --code DIR names the folder that it is in; a script of"
            " the image is named by its absolute path"
        )

    # Without --code, does the command name anything of this folder?
    names = [name for name in (script, *files.others) if name and _is_in(folder, name)]
    names += [f"-m {name}" for name in files.modules if _is_module(folder, name)]
    if given is None and not names:
        return None, _why_none(files, folder, shared_disk=shared_disk)
    if folder in {Path.home().resolve(), Path(folder.anchor)} and not shared_disk:
        raise CodeError(f"{where} is no folder of code alone: --code DIR names one")

    beside = start_files.resolve()
    place = os.path.relpath(folder, beside)
    reason = f", since the command names {names[0]}" if given is None else ""
    if shared_disk:
        code = OwnCode(str(folder), place, is_here=folder == beside)
        return code, f"{folder}, which all nodes must see{reason}; nothing is copied."
    needed = "" if is_absolute or not script else PurePosixPath(os.path.normpath(script)).as_posix()
    try:
        packed = pack(folder, beside, needed)
    except (UnpackableError, OSError) as error:
        raise CodeError(str(error)) from None
    code = OwnCode(str(folder), Path(place).as_posix(), packed.content, script=needed)
    return code, f"{folder}{reason}: {packed.about()}. Each start packs it anew."


def _refuse_unstartable(command: Sequence[str], folder: Path) -> None:
    """Raise for a first word that no node can start: a whole line, or a script alone."""
    program = command[0]
    if len(command) == 1 and len(program.split()) > 1:
        raise CodeError(
            f"{program!r} is one word: give the command without quotes around it, or as"
            f" bash -c {shlex.quote(program)}"
        )
    hint = shell_hint(program)
    if hint:
        raise CodeError(f"{program!r} is no program: {hint}")
    if not _is_in(folder, program) or not _SCRIPT.fullmatch(program):
        return
    interpreter = "python3" if program.endswith(".py") else "bash"
    if "/" not in program:
        raise CodeError(f"{program} is no program on PATH: -- {interpreter} {program}")
    if not os.access(folder / program, os.X_OK):
        started = f"-- {interpreter} {program}"
        raise CodeError(f"{program} may not be executed: {started}, or chmod +x it")


def command_warnings(command: Sequence[str], folder: Path) -> list[str]:
    """Return what a node would warn of in a command and its scripts; raise what it would refuse."""
    lines = script_lines(command, with_ray=True, folder=folder)
    words = " ".join(command)
    findings = [
        *script_findings(lines),
        *placeholder_slips([("the job's command", words, PLACEHOLDERS)]),
        *unexpanded_variables(command),
    ]
    for finding in findings:
        if finding.level is Level.FAIL:
            raise CodeError(f"{finding.what}. {finding.remedy}")
    return [f"{finding.what}. {finding.remedy}" for finding in findings]


def _why_none(files: CommandFiles, folder: Path, *, shared_disk: bool) -> str:
    """Return why no code is sent."""
    if files.script and shared_disk:
        taken = f"{files.script} is used where it is, on each node or in the image"
    elif files.script:
        taken = f"{files.script} is taken as the image's"
    elif files.modules:
        taken = f"{files.modules[0]} is not in {folder}, and is taken as a package of the image"
    else:
        taken = f"the command names no file of {folder}"
    return f"none is sent: {taken}. --code DIR brings a folder."


def _is_in(folder: Path, name: str) -> bool:
    """Return whether a relative path is a file in the folder."""
    if PurePosixPath(name).is_absolute():
        return False
    try:
        path = (folder / name).resolve()
        is_below = folder in Path(os.path.normpath(folder / name)).parents
        return is_below and path.is_file()
    except (OSError, ValueError):  # too long for a path, or not one at all
        return False


def _is_module(folder: Path, name: str) -> bool:
    return (folder / name).is_dir() or (folder / f"{name}.py").is_file()
