"""Ask the installed framework whether it accepts a command, without running the command.

It runs in the framework's Python, and needs neither the agent nor a GPU. The question is JSON in an
environment variable: `module` (what `python -m` runs, or the path of trl_grpo.py), `argv`, `world`
(the number of processes), `folder` (where the command runs). The answer is the last line of stdout,
JSON as well: `verdict` (accepted, refused or unknown), `what` (the framework's own words), `key`
(the argument that they are about), `near` (the framework's argument with nearly that name).

- A program of hydra (verl, Search-R1): its configuration is composed with the overrides.
- A program of argparse (OpenRLHF): it is run up to its training, without what only that imports.
- TRL: the bundled trl_grpo.py makes TRL's configuration, on CPUs.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import importlib
import importlib.util
import io
import json
import os
import re
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import ModuleType

QUESTION = "POD_AGENT_QUESTION"  # The environment variable with the question
ACCEPTED = "accepted"
REFUSED = "refused"
UNKNOWN = "unknown"
_LONGEST = 600  # characters of the framework's words
_NICE = 10  # what it takes of the CPU, Ray's start needs more

ON_CPUS = ("use_cpu=true", "bf16=false")
"""Fields of TRL's configuration without which a machine without GPUs cannot make it."""
_NO_GPU = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


class Verdict(NamedTuple):
    """What the framework says of a command."""

    verdict: str
    what: str = ""
    key: str = ""
    near: str = ""


class RefusedError(Exception):
    """The words with which a framework refuses its arguments."""


def main() -> int:
    """Answer the question of the environment."""
    question = json.loads(os.environ.pop(QUESTION))
    os.nice(_NICE)
    if question.get("folder"):
        os.chdir(question["folder"])
    os.environ.update(dict.fromkeys(_NO_GPU, ""))
    warnings.simplefilter("ignore")
    with contextlib.redirect_stdout(sys.stderr):
        verdict = ask(question["module"], question["argv"], question["world"])
    print(json.dumps(verdict._asdict()), flush=True)
    return 0


def ask(module: str, argv: Sequence[str], world: int) -> Verdict:
    """Return what the framework says; any error that is no refusal is `unknown`."""
    try:
        if module.endswith(".py"):
            return ask_trl(Path(module), argv, world)
        _import_as_the_job_does()
        place = source_of(module)
        if place is None:
            return Verdict(UNKNOWN, f"{module} is not installed for {sys.executable}")
        tree = ast.parse(place.read_text(encoding="utf-8"))
        declared = hydra_main(tree)
        if declared is not None:
            return ask_hydra(place, declared, argv)
        if module.startswith("openrlhf."):
            return ask_openrlhf(place, tree, argv)
    except Exception as error:  # noqa: BLE001 - a check that fails is no reason to refuse a job
        return Verdict(UNKNOWN, words_of(error))
    return Verdict(UNKNOWN, f"{module} reads its arguments in a form that is not known")


def _import_as_the_job_does() -> None:
    """Import from the current directory first, as `python -m` does, not from this file's folder."""
    own = str(Path(__file__).resolve().parent)
    sys.path[:] = ["", *(folder for folder in sys.path if folder not in {own, ""})]


def source_of(module: str) -> Path | None:
    """Return the file of a module; its packages are not imported."""
    first, *rest = module.split(".")
    spec = importlib.util.find_spec(first)
    folders = None if spec is None else spec.submodule_search_locations
    for folder in folders or ():
        stem = Path(folder, *rest)
        for file in (stem.with_suffix(".py"), stem / "__main__.py"):
            if file.is_file():
                return file.resolve()
    return None


def words_of(error: BaseException) -> str:
    """Return an error in its own words, on one line."""
    text = " ".join(str(error).split())
    if not isinstance(error, RefusedError):
        text = f"{type(error).__name__}: {text}"
    return text[:_LONGEST]


# --- hydra ----------------------------------------------------------------------------------------


class HydraMain(NamedTuple):
    """The arguments of a program's `@hydra.main`."""

    config_path: str
    config_name: str
    version_base: dict[str, Any]  # its version_base, if it names one


def hydra_main(tree: ast.Module) -> HydraMain | None:
    """Find `@hydra.main(config_path=…, config_name=…)` in a program."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        for call in function.decorator_list:
            if not isinstance(call, ast.Call) or ast.unparse(call.func) != "hydra.main":
                continue

            # Its arguments, as far as they are constants.
            given = {
                word.arg: word.value.value
                for word in call.keywords
                if word.arg and isinstance(word.value, ast.Constant)
            }
            path = given.get("config_path")
            name = given.get("config_name")
            if isinstance(path, str) and isinstance(name, str):
                base = {key: given[key] for key in ("version_base",) if key in given}
                return HydraMain(path, name, base)
    return None


class ComposeInput(NamedTuple):
    """What hydra composes: a folder, the name of a configuration there, and overrides."""

    folder: str
    name: str
    overrides: tuple[str, ...]
    version_base: dict[str, Any]


def ask_hydra(program: Path, declared: HydraMain, argv: Sequence[str]) -> Verdict:
    """Compose a program's configuration with the overrides, as its command line does."""
    own = ComposeInput(
        str((program.parent / declared.config_path).resolve()),
        declared.config_name,
        (),
        declared.version_base,
    )
    try:
        compose(hydra_input(program, own, argv))
    except RefusedError as error:
        return refusal(words_of(error), argv)
    except Exception as error:
        if not is_hydras(error):
            raise

        # Does it compose without the arguments? If not, they are not what it fails by.
        known = keys_of(compose(own))

        # Which argument is it about? Hydra's words name it, or the error has it, as one that the
        # grammar does not read. A list of folders ends the words.
        text = str(error).partition("Config search path:")[0]
        refused = refusal(" ".join(text.split())[:_LONGEST], argv, known)
        wrong = getattr(error, "override", None)
        if isinstance(wrong, str):
            return Verdict(REFUSED, f"{wrong!r}: {refused.what}", wrong.partition("=")[0])
        return refused
    return Verdict(ACCEPTED)


def keys_of(config: Any) -> list[str]:  # noqa: ANN401 - hydra's
    """Return every key of a composed configuration, with those of groups."""
    plain = importlib.import_module("omegaconf").OmegaConf.to_container(config)
    keys: list[str] = []

    def add(node: object, prefix: str) -> None:
        if not isinstance(node, dict):
            return
        for name, value in node.items():
            keys.append(f"{prefix}{name}")
            add(value, f"{prefix}{name}.")

    add(plain, "")
    return keys


def hydra_input(program: Path, own: ComposeInput, argv: Sequence[str]) -> ComposeInput:
    """Read hydra's own flags, such as --config-name, by its own parser."""
    parser = importlib.import_module("hydra._internal.utils").get_args_parser()
    with refusing():
        flags = parser.parse_args(list(argv))
    overrides = tuple(flags.overrides)

    # Its folder, and a further one, which the user's own search path replaces.
    folder = own.folder
    if flags.config_path is not None:
        folder = str((program.parent / flags.config_path).resolve())
    searched = any(word.lstrip("+~").startswith("hydra.searchpath=") for word in overrides)
    if flags.config_dir is not None and not searched:
        place = Path(flags.config_dir).resolve()
        overrides = (*overrides, f"hydra.searchpath=['file://{place}']")
    return ComposeInput(folder, flags.config_name or own.name, overrides, own.version_base)


def compose(given: ComposeInput) -> Any:  # noqa: ANN401 - hydra is not here to be typed
    """Compose a configuration; raise hydra's own error."""
    hydra = importlib.import_module("hydra")
    with hydra.initialize_config_dir(given.folder, **given.version_base):
        return hydra.compose(given.name, overrides=list(given.overrides))


def is_hydras(error: BaseException) -> bool:
    """Return whether hydra, or the library of its configurations, raised an error."""
    return type(error).__module__.split(".")[0] in {"hydra", "omegaconf", "antlr4"}


# --- argparse -------------------------------------------------------------------------------------


def ask_openrlhf(program: Path, tree: ast.Module, argv: Sequence[str]) -> Verdict:
    """Run one of OpenRLHF's programs with its training left out: its parser and its checks."""
    leave_out_training(tree)
    sys.argv = [str(program), *argv]
    known: list[str] = []
    try:
        with refusing(known):
            options_of(program, tree)
    except RefusedError as error:
        return refusal(words_of(error), argv, known)
    except (AssertionError, ValueError) as error:
        if not raised_by(error, program):
            raise
        return refusal(words_of(error), argv)
    return Verdict(ACCEPTED)


def leave_out_training(tree: ast.Module) -> None:
    """Empty a program's function `train`, and drop what only that imports: torch takes seconds."""
    functions = [part for part in tree.body if isinstance(part, ast.FunctionDef)]
    train = [function for function in functions if function.name == "train"]
    if not train:
        raise ImportError("the program has no function `train`: to run it could do anything")
    for function in train:
        function.body = [ast.copy_location(ast.Pass(), function)]

    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    tree.body = [
        part
        for part in tree.body
        if not isinstance(part, ast.Import | ast.ImportFrom) or used & imported_names(part)
    ]


def imported_names(statement: ast.Import | ast.ImportFrom) -> set[str]:
    """Return the names that an import defines."""
    return {alias.asname or alias.name.partition(".")[0] for alias in statement.names}


def options_of(program: Path, tree: ast.Module) -> Any:  # noqa: ANN401 - a namespace of the program's
    """Run a program as a script; return its options after its own checks."""
    names: dict[str, Any] = {"__name__": "__main__", "__file__": str(program)}
    exec(compile(tree, str(program), "exec"), names)  # noqa: S102 - the package's own program
    return names.get("args")


@contextlib.contextmanager
def refusing(known: list[str] | None = None) -> Iterator[None]:
    """Make parsers raise RefusedError with their words, instead of ending the process.

    `known` gets the flags of a parser that refuses.
    """

    def error(self: argparse.ArgumentParser, message: str) -> None:
        if known is not None:
            known.extend(self._option_string_actions)
        raise RefusedError(message)

    with mock.patch.object(argparse.ArgumentParser, "error", error):
        yield


def raised_by(error: BaseException, program: Path) -> bool:
    """Return whether a program's own file raised an error, not something that it has called."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last is not None and last.tb_frame.f_code.co_filename == str(program)


# --- TRL ------------------------------------------------------------------------------------------


def ask_trl(path: Path, argv: Sequence[str], world: int) -> Verdict:
    """Parse the arguments of trl_grpo.py; let TRL check its configuration for so many processes."""
    program = load(path)
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            options = program.parser().parse_args(list(argv))
    except SystemExit:
        return refusal(said.getvalue().strip().splitlines()[-1][:_LONGEST], argv)

    # Made as on the job's nodes, but on CPUs.
    options.wandb = False  # what its other packages need is not the question
    options.config = [*options.config, *ON_CPUS]
    options.checkpoints = "checkpoints"
    # With --cpu it names the backend gloo, which accelerate (1.15) has only within torchrun.
    options.cpu = False
    arguments = importlib.import_module("transformers").TrainingArguments
    try:
        with mock.patch.object(arguments, "world_size", max(1, world)):
            program.config_of(options)
    except (ValueError, program.TrainerSetupError) as error:
        return refusal(" ".join(str(error).split())[:_LONGEST], argv)
    return Verdict(ACCEPTED)


def load(path: Path) -> Any:  # noqa: ANN401 - the program's names
    """Load a program by its path, without starting it."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no program")
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- the argument ---------------------------------------------------------------------------------

_NAME = re.compile(r"--?\w+(?:[.-]+\w+)*|[A-Za-z_][\w.]*\w")


def refusal(what: str, argv: Sequence[str], known: Sequence[str] = ()) -> Verdict:
    """Return a refusal, with the argument that its words name, and a known one that is similar."""
    key = key_in(what, argv)
    bare = key.lstrip("+~") if "=" not in key else ""
    near = ""
    if bare not in known:
        near = next(iter(difflib.get_close_matches(bare, known, n=1)), "")
    return Verdict(REFUSED, what, key, near)


def key_in(what: str, argv: Sequence[str]) -> str:
    """Return the first argument that a framework's words name, as the command has it, or ''."""
    given: dict[str, str] = {}
    for word in argv:
        name = word.partition("=")[0]
        if "=" in word or word.startswith("-"):
            given.setdefault(name.lstrip("+~"), name)
    for said in _NAME.findall(what):
        if said in given:
            return given[said]

    # hydra may name only the last part of a key, and argparse a flag without its dashes
    last = {name.lstrip("-").rpartition(".")[2]: whole for name, whole in given.items()}
    return next((last[said] for said in _NAME.findall(what) if said in last), "")


if __name__ == "__main__":
    sys.exit(main())
