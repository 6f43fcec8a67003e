"""Rows about Python itself, if it is too old or a variable is not set."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from agent.diagnosis.cause import Cause
from agent.diagnosis.config_functions import framework_of
from agent.diagnosis.version_functions import package_of

if TYPE_CHECKING:
    from agent.diagnosis.errors.parsed_error import ParsedError

_VERSION = re.compile(r"/python(3\.\d{1,2})/")
_STANDARD = re.compile(
    r"cannot import name '(?P<name>\w{1,60})' from '(?P<module>enum|typing|types|dataclasses"
    r"|collections|collections\.abc|asyncio|contextlib|functools|itertools|datetime|inspect|copy"
    r"|importlib\.\w{1,30}|tomllib|warnings|hashlib|concurrent\.futures)' \("
)
_NEW_MODULES = re.compile(r"No module named '(?P<name>tomllib|zoneinfo|graphlib)'")
_REMOVED = re.compile(
    r"module '(?:inspect' has no attribute '(?P<inspect>getargspec|formatargspec|getmoduleinfo)"
    r"|collections' has no attribute '(?P<collections>Mapping|MutableMapping|Sequence|Iterable"
    r"|Iterator|Callable|Hashable|Sized|Container|MutableSet|MutableSequence|Set|Generator)"
    r"|pkgutil' has no attribute '(?P<pkgutil>ImpImporter|ImpLoader|find_loader|get_loader)"
    r"|configparser' has no attribute '(?P<configparser>SafeConfigParser)"
    r"|asyncio' has no attribute '(?P<asyncio>coroutine|async|JoinableQueue)"
    r"|ssl' has no attribute '(?P<ssl>wrap_socket|match_hostname|RAND_pseudo_bytes)"
    r"|ast' has no attribute '(?P<ast>Num|Str|Bytes|NameConstant|Ellipsis)"
    r"|time' has no attribute '(?P<time>clock)|fractions' has no attribute '(?P<fractions>gcd)"
    r"|base64' has no attribute '(?P<base64>encodestring|decodestring)"
    r"|unittest' has no attribute '(?P<unittest>makeSuite|findTestCases|_TextTestResult)"
    r"|typing' has no attribute '(?P<typing>io|re|ByteString|_ClassVar)"
    r"|gettext' has no attribute '(?P<gettext>l\w*gettext)"
    r"|locale' has no attribute '(?P<locale>format))'"
    r"|cannot import name '(?P<name2>Mapping|MutableMapping|Sequence|Iterable|Callable|Hashable"
    r"|Sized|Container|MutableSet|Set)' from 'collections'"
    r"|No module named '(?P<name3>imp|asyncore|asynchat|smtpd|cgi|crypt|pipes|telnetlib|imghdr"
    r"|sndhdr|audioop|nntplib|uu|xdrlib)'$"
    r"|(?P<default>mutable default <class '[^']{1,120}'> for field \w{1,80}) is not allowed"
)
"""What later versions of Python no longer have."""
_ADDED = re.compile(
    r"module '(?P<module>asyncio' has no attribute '(?:run|timeout|timeout_at|TaskGroup|Runner"
    r"|to_thread|Barrier|create_task|get_running_loop)"
    r"|typing' has no attribute '(?:Self|override|ParamSpec|TypeAlias|TypeGuard|Literal|Annotated"
    r"|Final|Protocol|TypedDict|NotRequired|Required|Unpack|TypeVarTuple|Never|LiteralString|assert_never"
    r"|Concatenate|dataclass_transform|get_origin|get_args|is_typeddict)"
    r"|inspect' has no attribute '(?:get_annotations|getattr_static|markcoroutinefunction)"
    r"|ast' has no attribute '(?:unparse|Match|TryStar|Constant|get_source_segment|TypeAlias)"
    r"|unittest' has no attribute 'IsolatedAsyncioTestCase)'"
)
"""What earlier versions of Python do not have yet."""
_FEWEST = 2  # frames: of the source, and of what runs it
_UNIONS = "unsupported operand type(s) for |: 'type'"
_REMOVED_NAMES = frozenset(("ByteString", "coroutine", "getargspec", "formatargspec"))
"""Names that newer versions of Python lack, not older ones."""
_MISTAKES = {
    "NameError": "a name is not defined",
    "UnboundLocalError": "a name is used before it has a value",
    "SyntaxError": "a mistake of syntax",
    "IndentationError": "a mistake of indentation",
}
_TEMPORARY = re.compile(r"^/tmp/(?!ray/)|/sandbox/|/submissions?/")
"""Where programs lie that a model wrote."""
_VARIABLE = re.compile(r"'(?P<name>[A-Z][A-Z0-9_]{2,60})'$")
_LONGEST_CODE = 80  # characters of a line of code that a sentence repeats
_OF_OS = re.compile(r"(?:/os\.py|<frozen os>)$")


def python_too_old(error: ParsedError) -> Cause | None:
    """An installed package uses what the job's Python lacks: its syntax or its own modules."""
    why = ""
    standard = _STANDARD.search(error.message)
    module = _NEW_MODULES.search(error.message)
    if error.name == "ImportError" and standard is not None:
        if standard["name"] in _REMOVED_NAMES or "/lib/python" not in error.message:
            return None
        if "-packages/" in error.message:
            return None  # a package or file has the name of Python's own module
        why = f"{standard['name']} of {standard['module']}"
    elif error.name == "ModuleNotFoundError" and module is not None:
        why = f"the module {module['name']}"
    elif error.name == "AttributeError" and (added := _ADDED.match(error.message)) is not None:
        why = added["module"].replace("' has no attribute '", ".")
    elif error.name == "TypeError" and _UNIONS in error.message:
        why = "types joined by |"
    elif error.name == "SyntaxError" and error.message.startswith("invalid syntax"):
        why = "newer syntax"
    if not why or not error.frames:
        return None
    user = package_of(error.frames[-1].file)
    if not user:
        return None  # a mistake in the job's own code
    version = next((one[1] for frame in error.frames if (one := _VERSION.search(frame.file))), "")
    which = f"Python {version}" if version else "the job's Python"
    if why == "newer syntax":
        return Cause(
            "Python too old",
            f"{which} cannot read a file of the installed {user}: newer or much older syntax, or "
            "a damaged file",
            f"Compare what {user} asks for (`pip show`, its page) with `python --version`: change "
            "the image, or the release",
        )
    return Cause(
        "Python too old",
        f"{which} is older than the installed {user} needs ({why})",
        f"Use an image with a newer Python, or the {user} of an older release",
    )


def made_source(error: ParsedError) -> Cause | None:
    """A package runs source that it made itself, of another package's: that is no valid Python."""
    frames = error.frames
    if error.name != "SyntaxError" or len(frames) < _FEWEST or frames[-1].file != "<string>":
        return None
    user = package_of(frames[-2].file)
    if not user or "exec(" not in frames[-2].code:
        return None
    return Cause(
        "made source",
        f"{user} made Python source that is no valid Python ({frames[-2].file}:{frames[-2].line})",
        f"Mostly {user} does not fit a package that it changes: install the versions that it asks "
        "for (`pip check`)",
    )


def python_too_new(error: ParsedError) -> Cause | None:
    """An installed package uses what the job's Python no longer has or takes."""
    found = _REMOVED.match(error.message.strip())
    if found is None:
        return None
    user = next(filter(None, (package_of(frame.file) for frame in reversed(error.frames))), "")
    if not user:
        return None  # a mistake in the job's own code
    name = "a mutable default" if found.lastgroup == "default" else found[found.lastgroup or 0]
    version = next((one[1] for frame in error.frames if (one := _VERSION.search(frame.file))), "")
    which = f"Python {version}" if version else "the job's Python"
    return Cause(
        "Python too new",
        f"the installed {user} is too old for {which}, which no longer has what it uses ({name})",
        f"Install a newer {user}, or use an image with an older Python",
    )


def mistake_in_own_code(error: ParsedError) -> Cause | None:
    """The job's own file has a mistake that Python itself names."""
    if error.name not in {"NameError", "UnboundLocalError", "SyntaxError", "IndentationError"}:
        return None
    frame = error.frames[-1] if error.frames else None
    if frame is None:
        return None
    is_library = "/lib/python" in frame.file or framework_of(frame.file)
    if package_of(frame.file) or is_library or not frame.file.startswith("/"):
        return None
    if _TEMPORARY.search(frame.file):
        return None  # a program that a model wrote
    why = error.message.partition("\n")[0].strip()
    if why.startswith("invalid syntax"):
        return None  # it may be the syntax of a newer Python
    return Cause(
        "mistake in own code",
        f"{_MISTAKES[error.name]} in {frame.file}:{frame.line} ({why})",
        "Correct it on all nodes; where an optional import gives a name, look whether its package "
        "is there",
    )


def failed_assertion(error: ParsedError) -> Cause | None:
    """An assertion without a message: its own line of code says what did not hold."""
    if error.name != "AssertionError" or error.message.strip() or not error.frames:
        return None
    frame = error.frames[-1]
    if not frame.code.startswith("assert "):
        return None
    code = frame.code if len(frame.code) <= _LONGEST_CODE else f"{frame.code[:_LONGEST_CODE]}…"
    return Cause(
        "assertion",
        f"a check of the program failed: `{code}`, in {frame.file}:{frame.line}",
        "The lines before it, and the settings that it compares, may show why",
    )


def variable_not_set(error: ParsedError) -> Cause | None:
    """A program reads an environment variable that is not set: `os.environ` looked it up."""
    named = _VARIABLE.match(error.message.strip())
    if error.name != "KeyError" or named is None or not error.frames:
        return None
    readers = [frame for frame in error.frames if not _OF_OS.search(frame.file)]
    if not readers:
        return None
    reader = readers[-1]
    is_of_os = len(readers) < len(error.frames)
    before, looked_up, _ = reader.code.partition(named["name"])
    if not is_of_os and not (looked_up and "environ" in before):
        return None
    return Cause(
        "variable not set",
        f"the environment variable {named['name']} is not set, which "
        f"{reader.file}:{reader.line} reads",
        "Set it for the job on every node, or leave out the setting that needs it",
    )
