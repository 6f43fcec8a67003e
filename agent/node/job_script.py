"""Lines of a job's script that would end the agent or its Ray, such as `pkill -9 python`.

Many frameworks' scripts clean up a machine before they start Ray themselves. Under the agent that
ends the agent, the Ray of the run, and with them the job. Only words at the place of a command
count: a comment, a text that is printed and a here-document do not. Which names and command lines a
pattern is tried on is `_Victims`.
"""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from agent.base.value import Value
from agent.node.facts import EndingLine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

IGNORE = "# pod-agent: ignore"
"""A comment by which a user insists that a line ends nothing of the agent."""
_LARGEST = 1 << 20  # bytes of a script that is read
_MOST = 3  # lines that are named
_SHELLS = re.compile(r"(ba|da|z|k)?sh")


class _Victims(Value):
    """What runs on a node of ours, by the names and command lines that pkill compares."""

    names: tuple[str, ...]  # of processes
    lines: tuple[str, ...]  # their command lines, for `pkill -f`
    has_ray: bool


def ending_lines(command: Sequence[str], *, with_ray: bool) -> tuple[EndingLine, ...]:
    """Return the first lines of a job's command, or of its script, that end the agent or its Ray.

    `with_ray` is true if the agent starts a Ray.
    """
    victims = _victims(command, with_ray=with_ray)
    given = _inline_text(command)
    if given:
        found = _in_shell(given, "the command after --", victims)
        return tuple(found)[:_MOST]
    path = _script(command)
    text = _text(path) if path else ""
    first = text.partition("\n")[0]
    is_python = path.endswith(".py") or (first.startswith("#!") and "python" in first)
    look = _in_python if is_python else _in_shell
    return tuple(look(text, path, victims))[:_MOST]


def _victims(command: Sequence[str], *, with_ray: bool) -> _Victims:
    agent = f"python3 -m agent run -- {' '.join(command)}"
    names: tuple[str, ...] = ("python", "python3", "pod-agent")
    lines: tuple[str, ...] = (
        agent,
        agent.replace("python3 -m agent", "/usr/bin/python3 /usr/bin/pod-agent"),
    )
    if with_ray:
        names = (*names, "ray", "raylet", "gcs_server", "ray::IDLE")
        lines = (*lines, "ray start --head --block", "raylet/raylet --node_ip_address=10.0.0.1")
    return _Victims(names, lines, with_ray)


# --- what is read --------------------------------------------------------------------------------


def _inline_text(command: Sequence[str]) -> str:
    """Return the text of `bash -c '…'`, or ''."""
    if not command or not _SHELLS.fullmatch(PurePath(command[0]).name):
        return ""
    for at, word in enumerate(command[1:], 1):
        is_flag = word.startswith("-") and not word.startswith("--")
        if is_flag and word.endswith("c") and at + 1 < len(command):
            return command[at + 1]
        if not word.startswith("-"):
            break
    return ""


def _script(command: Sequence[str]) -> str:
    """Return the path of the command's script: its program, or the first word that is a file."""
    for at, word in enumerate(command):
        if "{" in word:
            continue
        is_named = word.endswith((".py", ".sh", ".bash"))
        if (is_named or at == 0) and _is_text(word):
            return word
    return ""


def _is_text(word: str) -> bool:
    """Return whether a word is a file of a script: by its name, or its first two bytes."""
    try:
        path = Path(word)
        if not path.is_file() or path.stat().st_size > _LARGEST:
            return False
        if word.endswith((".py", ".sh", ".bash")):
            return True
        with path.open("rb") as file:
            return file.read(2) == b"#!"
    except (OSError, ValueError):
        return False


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


# --- shell ---------------------------------------------------------------------------------------

_OPENS = re.compile(r"(?:^|[;&|]\s*|\s)(?:if|case|for|while|until|select)\b|(?:\(\)|^)\s*\{\s*$")
_CLOSES = re.compile(r"^\s*(?:fi|esac|done|\})(?=$|[\s;&|)])")
_AND_OR = re.compile(r"&&|\|\|")
_HERE = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_PREFIXES = {
    *(
        "sudo",
        "command",
        "exec",
        "nohup",
        "time",
        "env",
        "then",
        "do",
        "else",
        "!",
        "{",
        "(",
        "nice",
    ),
    *("if", "while", "until", "timeout", "setsid"),
}
_OPERATORS = set(";&|()`")
"""The characters between two commands of a line."""


def _in_shell(text: str, path: str, victims: _Victims) -> Iterator[EndingLine]:
    depth = 0
    here = ""
    for number, line in _whole_lines(text):
        # Inside a here-document nothing is a command of this shell.
        if here:
            if line.strip() == here:
                here = ""
            continue
        opened = _HERE.search(line)
        if opened is not None:
            here = opened[2]

        # Does it run in any case? Not below `if`, in a loop, or in a function that is not called.
        bare = line.strip()
        depth = max(0, depth - len(_CLOSES.findall(line)))
        is_sure = depth == 0 and not bare.startswith(("if ", "while ", "until ", "elif "))
        depth += len(_OPENS.findall(line))
        if re.search(r"(?:;|\s)(?:fi|done|esac)\s*(?:$|[;&|#])", line):
            depth = max(0, depth - 1)

        if not bare or bare.startswith("#") or line.rstrip().endswith(IGNORE):
            continue
        if _ends(line, victims):
            first = _AND_OR.split(line)[0]
            yield EndingLine(path, number, bare[:200], is_sure and _ends(first, victims))


def _whole_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines with their numbers; one that ends with a backslash goes on in the next."""
    begun = 0
    parts: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        begun = begun or number
        if line.endswith("\\"):
            parts.append(line[:-1])
            continue
        yield begun, " ".join([*parts, line])
        begun = 0
        parts = []
    if parts:
        yield begun, " ".join(parts)


def _ends(line: str, victims: _Victims) -> bool:
    """Return whether one of a line's commands ends the agent or its Ray."""
    commands = list(_commands(line))
    if any(_command_ends(words, victims) for words in commands):
        return True

    # `ps aux | grep python | xargs kill -9`, `kill -9 $(pgrep -f ray)`: who is killed is searched.
    kills = any(words[:1] == ["kill"] or words[:2] == ["xargs", "kill"] for words in commands)
    searched = [words for words in commands if words[0] in {"grep", "pgrep", "pidof"}]
    return kills and any(_search_matches(words, victims) for words in searched)


def _commands(line: str) -> Iterator[list[str]]:
    """Yield the words of each command of a line, without what precedes a command."""
    try:
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|()`")
        lexer.whitespace_split = True
        lexer.commenters = "#"
        tokens = list(lexer)
    except ValueError:  # quotes that end on another line
        return
    words: list[str] = []
    for part in [*tokens, ";"]:
        if part == "$" or set(part) <= _OPERATORS:
            bare = _without_prefix(words)
            if bare:
                yield bare
            words = []
        else:
            words.append(part)


def _without_prefix(words: list[str]) -> list[str]:
    """Drop assignments, and words such as `sudo`, with their flags and numbers."""
    at = 0
    seen_prefix = False
    while at < len(words):
        word = words[at]
        is_assignment = re.fullmatch(r"\w+=.*", word, re.DOTALL) is not None
        is_option = seen_prefix and re.fullmatch(r"-\S*|\d+[smh]?", word) is not None
        if word not in _PREFIXES and not is_assignment and not is_option:
            break
        seen_prefix = seen_prefix or word in _PREFIXES
        at += 1
    bare = words[at:]
    if not bare:
        return []
    if bare[0] == "xargs":
        rest = [word for word in bare[1:] if not word.startswith("-")]
        return ["xargs", *rest]
    return [PurePath(bare[0]).name, *bare[1:]]


_PKILL_TAKES = {"-u", "-U", "-G", "-t", "--euid", "--uid", "--group", "--terminal", "--signal"}
_PKILL_LIMITS = ("-P", "--parent", "-g", "--pgroup", "-s", "--session", "-F", "--pidfile", "-v")
_KILLALL_TAKES = {"-u", "--user", "-s", "--signal", "-o", "-y", "-n", "--ns"}


def _command_ends(words: list[str], victims: _Victims) -> bool:
    program = words[0]
    if program == "ray":
        return victims.has_ray and words[1:2] == ["stop"]
    if program == "pkill":
        return _search_matches(words, victims)
    if program == "killall":
        names = _operands(words[1:], _KILLALL_TAKES)
        is_pattern = "-r" in words or "--regexp" in words
        return any(_name_matches(name, victims, is_pattern=is_pattern) for name in names)
    if program == "killall5":
        return True
    return program == "kill" and words[-1] == "-1" and len(words) > 2  # every process


def _operands(words: Sequence[str], taking: set[str]) -> list[str]:
    """Return the words that are neither flags nor the value of one."""
    found = []
    skips = False
    for word in words:
        if skips:
            skips = False
        elif word.startswith("-"):
            skips = word in taking
        elif re.match(r"\d*[<>]", word) is None:
            found.append(word)
    return found


def _name_matches(name: str, victims: _Victims, *, is_pattern: bool) -> bool:
    if is_pattern:
        return any(_matches(name, victim) for victim in victims.names)
    return name in victims.names


def _search_matches(words: list[str], victims: _Victims) -> bool:
    """Return whether the pattern of pkill, pgrep, pidof or grep finds one of the victims."""
    flags = [word for word in words[1:] if word.startswith("-")]
    if words[0] != "grep" and any(flag.startswith(_PKILL_LIMITS) for flag in flags):
        return False
    if words[0] == "grep" and any(flag.startswith("-") and "v" in flag for flag in flags):
        return False
    operands = _operands(words[1:], set() if words[0] == "grep" else _PKILL_TAKES)
    if not operands or "$" in operands[0]:
        return False
    pattern = operands[0]
    if words[0] == "pidof":
        return pattern in victims.names
    is_full = words[0] == "grep" or any(
        flag == "--full" or re.fullmatch(r"-\w*f\w*", flag) for flag in flags
    )
    is_exact = any(flag == "--exact" or re.fullmatch(r"-\w*x\w*", flag) for flag in flags)
    texts = victims.lines if is_full else victims.names
    if is_exact:
        pattern = f"^(?:{pattern})$"
    return any(_matches(pattern, text) for text in texts)


def _matches(pattern: str, text: str) -> bool:
    try:
        return re.search(pattern, text) is not None
    except re.error:
        return False


# --- Python --------------------------------------------------------------------------------------

_RUNS = {
    *("system", "popen", "run", "call", "check_call", "check_output", "Popen", "getoutput"),
    *("getstatusoutput", "exec_command", "execute"),
}


def _in_python(text: str, path: str, victims: _Victims) -> Iterator[EndingLine]:
    """Yield calls that run such a command; one within a function or `if` may not be reached."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    at_top = {id(node.value) for node in tree.body if isinstance(node, ast.Expr | ast.Assign)}
    lines = text.splitlines()
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for call in sorted(calls, key=lambda node: node.lineno):
        line = lines[call.lineno - 1]
        runs = any(_ends(one, victims) for one in _shell_text(call).splitlines())
        if runs and not line.rstrip().endswith(IGNORE):
            yield EndingLine(path, call.lineno, line.strip()[:200], id(call) in at_top)


def _shell_text(call: ast.Call) -> str:
    """Return the command that a call of `os.system` or `subprocess` runs, as far as it is text."""
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if name not in _RUNS or not call.args:
        return ""
    first = call.args[0]
    if isinstance(first, ast.Constant) and isinstance(first.value, str):
        return first.value
    if isinstance(first, ast.List | ast.Tuple):
        words = [item.value for item in first.elts if isinstance(item, ast.Constant)]
        return shlex.join(map(str, words))
    return ""
