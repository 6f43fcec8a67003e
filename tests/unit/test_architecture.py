"""Rules over the sources: imports, pure folders, names and first lines.

Each rule is one test that lists every offender with its file.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from support.sources import BUNDLED, FOLDERS, ROOT, modules, nodes, trees

if TYPE_CHECKING:
    from collections.abc import Iterator

ENTRY_POINTS = {"agent/__init__.py", "agent/__main__.py"}
"""The only files outside these folders: they import from any of them."""
SERVERS = {
    f"agent/bundled/{name}.py"
    for name in ("reward_server", "judge", "retriever", "rehearsal_engine")
}
"""The HTTP servers, which `pod-agent` runs in the agent's own Python: they have what it has."""
SHARED = {"base", "serving"}
"""The base of HTTP servers, the agent's port among them: its limits are written once."""
PURE = {
    "base",
    "settings",
    "platforms",
    "frameworks",
    "job",
    "checks",
    "plan",
    "decisions",
    "diagnosis",
}
"""Folders without effects. In `node` only the files of READ_MACHINE have any."""
PURE_FILES = {f"agent/front/front_{name}.py" for name in ("members", "traffic")}
"""Files without effects beside others that have some."""
READ_MACHINE = {
    f"agent/node/{name}.py" for name in ("read", "gpus", "read_figures", "code_archive")
}
READ_ENVIRON = {
    "agent/bridge/light_calls.py",  # in the bridge: the variables that Ray's own clients read
    "agent/processes/cache_program.py",  # a program of its own: a key that no argv may show
    "agent/front/front_program.py",  # the same
    "agent/cli/command_line.py",
    "agent/cli/other_system.py",
    "agent/__main__.py",
    "agent/processes/parent.py",
    "agent/processes/page_cache.py",
}
SLEEP = {f"agent/cli/{name}.py" for name in ("logs_verb", "watch_status")}
IMPORT_RAY = {"agent/bridge/ray_calls.py"}
EFFECTS = {"anyio", "asyncio", "subprocess", "threading", "socket", "psutil", "aiohttp", "requests"}
"""Modules by which a program acts; a file of a pure folder imports none of them."""
TYPED = "agent/base/typed.py"
FIRST_LINE = 90
RIDDLES = re.compile(
    r"\b(heard|hears|seen|told|tells|said|says|weigh(ed|s)|judged|shown|kept|knows|dies|died"
    r"|lives|notes|remarks|story|seat|outfit|aside|underway)\b",
    re.IGNORECASE,
)
"""Words for which the glossary has a plain one; the first line of a module has none of them."""


LATE_IMPORTS = {
    "agent/run/main.py": "what runs once `ray start` was launched",
    "agent/run/effects.py": "aiohttp, once `ray start` was launched",
    "agent/run/end.py": "what makes a bundle and notifies, at the end of a run",
    "agent/run/restarts.py": "what holds a pod at the end of a run",
    "agent/run/node_run.py": "what reads logs, once `ray start` was launched",
    "agent/run/diagnose.py": "the rules for known errors, once a job or a run has failed",
    "agent/record/job_lines.py": "the same, at the job's first line of output",
    "agent/run/plan_files.py": "what reads and measures what is uploaded, yaml among it",
    "agent/bridge/ray_calls.py": "Ray",
    "agent/bridge/light_calls.py": "gRPC, which is Ray's: the agent's Python may lack it",
    "agent/node/limits.py": "resource, which Windows lacks: `recipe` works there",
    "agent/node/read_figures.py": "pynvml, which only nodes with NVIDIA's GPUs need",
    "agent/cli/watch_status.py": "rich, which is optional",
    "agent/record/log.py": "structlog, without the modules that it would load for tracebacks",
    "agent/processes/waiting.py": "tenacity, which nothing needs before `ray start`",
}
"""The only files, apart from bundled programs, that import inside functions: what, and why.

Loading modules takes most of the CPU until `ray start`, and of every one-shot verb. All other files
import at their top, and are loaded themselves when they are needed: by agent/run/main.py, or by
`agent.load`, which imports the module of a verb, or what only a job that stalls needs.
"""
MOST_LATE_IMPORTS = 38


def folder(name: str) -> str:
    """Return the folder of a file, or the file itself where it lies in none."""
    parts = name.split("/")
    return parts[1] if len(parts) > 2 else name


def imports(tree: ast.AST) -> Iterator[str]:
    """Name every module that is imported, anywhere in a file, for types or at run time."""
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide where a name comes from"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imported_files(tree: ast.AST) -> set[str]:
    """Return the files of the agent that a file names in its imports."""
    found = set()
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
            # a package that is only passed through is not what a file depends on
            found |= {
                str(node.module)
                for alias in node.names
                if f"{node.module}.{alias.name}" not in modules()
            }
    return {modules()[module] for module in found if module in modules()}


def packages(tree: ast.AST) -> set[str]:
    """Return the first parts of all imported names."""
    return {module.split(".")[0] for module in imports(tree)}


def uses(tree: ast.AST, module: str, *names: str) -> bool:
    """Whether a file uses one of a module's names, by the module or imported from it."""
    return any(
        (
            isinstance(node, ast.Attribute)
            and node.attr in names
            and isinstance(node.value, ast.Name)
            and node.value.id == module
        )
        or (
            isinstance(node, ast.ImportFrom)
            and node.module == module
            and any(alias.name in names for alias in node.names)
        )
        for node in nodes(tree)
    )


def own_files() -> list[str]:
    """Return the agent's own files, without the programs that it ships."""
    return [name for name in trees() if folder(name) != BUNDLED]


def first_line(text: str) -> str:
    """Return the first line of a module's docstring; empty where it has none."""
    found = re.match(r'(?:#.*\n)*"""(.*?)(?:"""|\n)', text)
    return found[1] if found else ""


def test_every_file_lies_in_a_folder_of_the_list() -> None:
    """A new folder needs its place in FOLDERS; a name in another list needs its file."""
    folders = {folder(name) for name in trees()}
    assert folders - set(FOLDERS) - {BUNDLED} == ENTRY_POINTS
    assert set(FOLDERS) <= folders
    assert set(trees()) >= PURE_FILES | READ_MACHINE | READ_ENVIRON | SLEEP | IMPORT_RAY


def test_imports_go_one_way() -> None:
    """A file imports from its own folder and from those before it, for types too."""
    wrong = []
    for name in sorted(trees().keys() - ENTRY_POINTS):
        own = folder(name)
        allowed = {BUNDLED} if own == BUNDLED else set(FOLDERS[: FOLDERS.index(own) + 1])
        allowed = {"serving", *SHARED} if own == "serving" else allowed
        allowed |= SHARED if name in SERVERS else set()
        allowed |= {"__version__", "load"}  # names of the package, no modules
        used = {m.split(".")[1] for m in imports(trees()[name]) if m.startswith("agent.")}
        wrong += [f"{name} imports agent.{other}" for other in sorted(used - allowed)]
    assert wrong == []


def test_all_http_servers_have_one_base() -> None:
    """No file but the base makes a server, or reads a body: its limits hold for each."""
    words = re.compile(
        r"\b(?:AppRunner|TCPSite|SockSite|UnixSite|run_app|HTTPServer|start_server)\b"
        r"|\brequest\.(?:read|json|text|post|multipart|content)\b(?!_type)"
    )
    texts = {name: (ROOT / name).read_text() for name in trees() if folder(name) != "serving"}
    found = {name: set(words.findall(text)) for name, text in texts.items()}
    assert {name: names for name, names in found.items() if names} == {}


def test_no_file_imports_itself_by_way_of_others() -> None:
    """Imports for types count too: files that import each other cannot be read one by one."""
    needed = {name: imported_files(tree) - {name} for name, tree in trees().items()}
    size = 0
    while size != len(needed):  # leave out what imports none of the rest, or is imported by none
        size = len(needed)
        imported = set().union(*needed.values())
        needed = {name: files & needed.keys() for name, files in needed.items()}
        needed = {name: files for name, files in needed.items() if files and name in imported}
    assert {name: sorted(files) for name, files in needed.items()} == {}


def test_pure_folders_have_no_effects() -> None:
    """Files of pure folders import nothing by which a program acts; of `node` only its readers."""
    pure = [n for n in trees() if folder(n) in PURE | {"node"} and n not in READ_MACHINE]
    pure += PURE_FILES
    used = {name: sorted(packages(trees()[name]) & EFFECTS) for name in pure}
    assert used.pop(TYPED) == ["threading"]  # a lock alone
    assert {name: effects for name, effects in used.items() if effects} == {}


def test_the_environment_is_read_in_one_place() -> None:
    """Only the entry points and the parent read os.environ; all others are given a mapping."""
    names = ("environ", "environb", "getenv", "putenv", "unsetenv")
    readers = {name for name in own_files() if uses(trees()[name], "os", *names)}
    assert sorted(readers - READ_ENVIRON) == []


def late_imports(tree: ast.AST) -> set[int]:
    """Return the lines of imports inside functions."""
    functions = (n for n in nodes(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    return {
        node.lineno
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }


def test_types_are_read_in_one_place() -> None:
    """Two threads that let msgspec describe a type at once crash; only this file has a lock."""
    direct = re.compile(
        r"msgspec\.convert\(|\btype=|from msgspec(\.json)? import .*\b(convert|decode)\b"
    )
    found = {
        name
        for name in own_files()
        if folder(name) != BUNDLED
        for line in (ROOT / name).read_text().splitlines()
        if ("msgspec" in line or "decode(" in line) and direct.search(line)
    }
    assert found == {TYPED}


def test_few_imports_are_inside_functions() -> None:
    """Only files with a reason import inside functions, and few in all."""
    found = {name: len(late_imports(tree)) for name, tree in trees().items()}
    where = {name for name, number in found.items() if number and folder(name) != BUNDLED}
    assert where == LATE_IMPORTS.keys()
    assert sum(found.values()) <= MOST_LATE_IMPORTS


def test_what_run_loads_before_ray_starts_is_light() -> None:
    """Before `ray start` no module loads what only a running cluster needs.

    That is several libraries, and what reads logs, whose patterns take long to compile.
    """
    heavy = (
        *("aiohttp", "ray", "requests", "rich", "structlog", "tenacity", "yaml"),
        *("agent.diagnosis.find_cause", "agent.diagnosis.rows", "agent.record.job_lines"),
    )
    loaded = "import sys, agent.cli, agent.run.main, agent.run.make_ready"
    program = f"{loaded}; print(sorted({{*{heavy!r}}} & sys.modules.keys()))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("role", ["head", "worker"])
def test_what_a_role_loads_until_the_job_starts_is_light(role: str) -> None:
    """Ray boots on the same cores: what only a job's output or an end needs is loaded then."""
    heavy: tuple[str, ...] = (
        *("ray", "grpc", "requests", "rich", "yaml"),
        *("agent.diagnosis.find_cause", "agent.diagnosis.rows", "agent.diagnosis.live_errors"),
    )
    of_the_head = ("agent.decisions.head.head_decide", "agent.run.head_server", "agent.run.stall")
    heavy += of_the_head if role == "worker" else ()
    loaded = f"import sys, agent.cli.command_line, agent.run.main as main; main.load_{role}()"
    program = f"{loaded}; print(sorted({{*{heavy!r}}} & sys.modules.keys()))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    "module",
    [
        *("agent.__main__", "agent.bridge.child", "agent.node.python_facts"),
        *("agent.bundled.fetch_model", "agent.bundled.rehearsal", "agent.bundled.all_reduce"),
        *("agent.bundled.trl_grpo", "agent.bundled.rehearsal_async"),
    ],
)
def test_programs_in_other_pythons_import_only_the_standard_library(module: str) -> None:
    """Ray's Python may lack the agent's libraries. `-S` hides all that are installed."""
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {module}"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""


def test_ray_is_imported_late_and_in_one_place() -> None:
    """One file of the bridge and the bundled programs import Ray, inside functions."""
    users = {name for name, tree in trees().items() if "ray" in packages(tree)}
    assert [n for n in sorted(users - IMPORT_RAY) if folder(n) != BUNDLED] == []
    at_top = {
        name
        for name in users
        for node in trees()[name].body
        if isinstance(node, ast.Import | ast.ImportFrom) and "ray" in packages(node)
    }
    assert sorted(at_top) == []


def test_no_sleep_stands_for_a_condition() -> None:
    """Only loops whose result a person watches sleep; processes/waiting.py waits for the rest."""
    sleepers = {name for name in own_files() if uses(trees()[name], "time", "sleep")}
    assert sorted(sleepers - SLEEP) == []


def test_no_thread_is_taken_from_a_pool_that_a_stalled_disk_uses_up() -> None:
    """What may block has a thread of its own; the port's answers, which need no disk, share one."""
    pooled = {name for name in own_files() if "to_thread.run_sync" in (ROOT / name).read_text()}
    assert {name for name in pooled if folder(name) != "bundled"} == {"agent/port/server.py"}


def test_every_module_opens_with_one_plain_sentence() -> None:
    """Short, ended by a full stop, and in the words of the glossary."""
    wrong = {}
    for path in (p for top in ("agent", "tests", "scripts") for p in ROOT.glob(f"{top}/**/*.py")):
        if ".versions" in path.parts:
            continue  # packages of others, which scenarios install there
        line = first_line(path.read_text())
        if not line.endswith(".") or len(line) > FIRST_LINE or RIDDLES.search(line):
            wrong[str(path.relative_to(ROOT))] = line
    assert wrong == {}


def test_no_two_classes_have_one_name() -> None:
    """A reader who searches for a class finds one."""
    files = defaultdict(list)
    for name, tree in trees().items():
        for node in nodes(tree):
            if isinstance(node, ast.ClassDef):
                files[node.name].append(name)
    assert {name: where for name, where in files.items() if len(where) > 1} == {}


def test_no_index_address_in_any_file() -> None:
    """No address of a package index appears in the agent or its configuration."""
    files = [ROOT / "pyproject.toml", *(ROOT / name for name in trees())]
    files += ROOT.glob("requirements/*")
    words = ["--index-" + "url", "--extra-index-" + "url", "py" + "pi.org", "/sim" + "ple/"]
    found = [f"{p.name}: {w}" for p in files for w in words if w in p.read_text()]
    assert found == []
