"""`pod-agent init`: asks for missing values, and writes the files of a run on a platform."""

from __future__ import annotations

import re
import shlex
import sys
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit
from zipfile import is_zipfile

from msgspec.structs import replace

from agent.base.text import error_text
from agent.cli.options import flag, gigabytes, name_among, value, whole_number
from agent.cli.start_files.agent_file import (
    ONE_FILE,
    AgentFile,
    one_file_here,
    packed_wheel,
)
from agent.cli.start_files.own_code import CodeError, command_warnings, find_code
from agent.cli.start_files.platform_files import SERVICES, on_kubernetes
from agent.cli.start_files.platforms_of_init import (
    PLATFORMS,
    default_variant,
    misfit,
    missing_disk,
    missing_image,
    missing_python,
)
from agent.cli.start_files.recipe_check import recipe_warnings, with_groups
from agent.cli.start_files.request import (
    OWN_COMMAND,
    Request,
    StartFiles,
    preset_of,
    presets,
    variables_of_plan,
)
from agent.cli.start_files.runpod_gpus import check_counts, runpod_gpu
from agent.settings.jobs import BY_NAME
from agent.settings.values import host

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping

T = TypeVar("T")

_DIGEST = re.compile(r"[0-9a-f]{64}")
_TIME_LIMIT = re.compile(r"\d+(?::\d+){0,2}|\d+-\d+(?::\d+){0,2}|UNLIMITED|INFINITE", re.IGNORECASE)


def _digest(text: str) -> str:
    """Read a SHA-256."""
    if not _DIGEST.fullmatch(text.lower()):
        raise ValueError(f"{text!r} is no SHA-256: 64 digits of 0-9 and a-f, as in dist/SHA256SUMS")
    return text.lower()


def _at_least_one(text: str) -> int:
    """Read the number of nodes."""
    number = whole_number(text)
    if not number:
        raise ValueError("a run has one node at least, the head")
    return number


def _hosts(text: str) -> tuple[str, ...]:
    """Read machines, [USER@]HOST with commas or spaces between them."""
    hosts = tuple(text.replace(",", " ").split())
    if not hosts:
        raise ValueError("one machine at least, with commas between them")
    for name in hosts:
        try:
            host(name.rpartition("@")[2])
        except ValueError as error:
            raise ValueError(f"{name!r}: expected {error}") from None
        if hosts.count(name) > 1:
            raise ValueError(f"{name} is named twice")
    return hosts


def _words(text: str) -> str:
    """Read a text that is not empty, and that a file can hold."""
    if not text.strip() or set(text) & set("\"'\\`$\n"):
        raise ValueError(f"{text!r}: expected a text without quotes, $ and backslashes")
    return text.strip()


def _word(text: str) -> str:
    """Read the same without spaces."""
    word = _words(text)
    if len(word.split()) > 1:
        raise ValueError(f"{text!r}: expected one word, without spaces")
    return word


def _gpu_kind(text: str) -> str:
    """Read the kind of a GPU; dstack and SkyPilot write their number behind a colon."""
    kind, _, number = _words(text).rpartition(":")
    if kind and number.isdecimal():
        raise ValueError(f"{text!r}: expected the kind alone, {kind}; --gpus says how many")
    return text.strip()


def _time_limit(text: str) -> str:
    """Read a time limit as sbatch does."""
    if not _TIME_LIMIT.fullmatch(text):
        raise ValueError(f"{text!r} is no time limit of Slurm, such as 90, 12:00:00 or 1-00:00:00")
    return text


def _word_or_none(text: str) -> str:
    """Read a text that may be empty."""
    return _word(text) if text.strip() else ""


OPTIONS = (
    value(
        "platform", "PLATFORM", ", ".join(PLATFORMS), name_among("platform", PLATFORMS), nargs="?"
    ),
    value(
        "recipe",
        "RECIPE",
        "see `recipes`; or a command of your own after --",
        name_among("recipe", BY_NAME),
        nargs="?",
    ),
    value("--nodes", "N", "nodes, the head among them", _at_least_one),
    value("--gpus", "G", "GPUs of each node", whole_number),
    value("--model", "MODEL", "id on the hub or a path on the nodes; default: a usual one", _word),
    value("--data", "DATA", "training data: id or path on the nodes; default: usual ones", _word),
    value("--image", "IMAGE", "an image that has the framework; default: a usual one", _word),
    value("--container", "KIND", f"Slurm: {', '.join(PLATFORMS['slurm'].variants)}", _word),
    value(
        "--kind",
        "KIND",
        f"Kubernetes: {', '.join(PLATFORMS['kubernetes'].variants)}; RunPod:"
        f" {', '.join(PLATFORMS['runpod'].variants)}",
        _word,
    ),
    value("--gpu-type", "GPU", "RunPod, dstack, SkyPilot: the kind of GPU", _gpu_kind),
    value("--gpu-memory", "GB", "of each GPU; default: of --gpu-type, else 80", gigabytes),
    value("--host-memory", "GB", "of each node; default: 128 for each GPU", gigabytes),
    value(
        "--center", "PLACE", "RunPod: data center; dstack: BACKEND/REGION; SkyPilot: infra", _word
    ),
    value(
        "--volume",
        "VOLUME",
        "what outlives the nodes: RunPod's network volume, dstack's volume, SkyPilot's bucket, an"
        " existing claim of Kubernetes",
        _word,
    ),
    value(
        "--services",
        "FILE",
        "a file for AGENT_SERVICES, which is sent along; default: what that variable names here",
        Path,
    ),
    value(
        "--group-nodes",
        "WHERE",
        "of groups, for cheaper nodes. Slurm: another partition; Kubernetes: LABEL=VALUE",
        _word,
    ),
    value("--fleet", "FLEET", "dstack: a fleet that exists; default: one is made", _word),
    value("--partition", "NAME", "Slurm", _word),
    value("--account", "NAME", "Slurm", _word),
    value("--time", "LIMIT", "Slurm: time limit; default: 1-00:00:00", _time_limit),
    value("--python", "PATH", "Slurm without a container: the framework's Python", _word),
    value("--hosts", "A,B,…", "ssh: the machines, the head first, as all reach them", _hosts),
    flag(
        "--spot",
        "dstack, SkyPilot: machines that may be taken away; SkyPilot's groups: only theirs",
    ),
    flag("--wandb", "the platform's store of secrets has WANDB_API_KEY"),
    flag("--hf-token", "the platform's store of secrets has HF_TOKEN, for gated models"),
    value(
        "--code",
        "DIR",
        "the folder of your command's code, which is sent along; default: this folder, where the"
        " command names a file in it",
        Path,
    ),
    value(
        "--agent", "FILE", "the agent's one file or wheel; default: what fits the platform", Path
    ),
    value("--agent-url", "URL", "nodes fetch the one file or wheel from there", _word),
    value("--agent-sha256", "DIGEST", "its SHA-256, with --agent-url", _digest),
    value("--to", "FOLDER", "where to write; default: here", Path, default=Path()),
    flag("--force", "overwrite files that exist"),
)
_OF_SOME_PLATFORMS = {
    *("image", "container", "kind", "gpu_type", "center", "volume", "fleet", "partition"),
    *("account", "time", "python", "hosts", "spot", "wandb", "hf_token", "services", "group_nodes"),
}
"""Options that not every platform takes."""


def run(environ: Mapping[str, str], options: argparse.Namespace) -> int:
    """Write the start files; return 0, or 2 where something is missing or would be lost.

    Raises the refusal of a recipe that does not fit these nodes.
    """
    try:
        request, platform = _request(options)
        services = _services(options, environ, platform, request)
        sizes = (options.gpu_memory, options.host_memory)
        warnings = [*recipe_warnings(request, environ, services, *sizes)]
        request = _with_groups(request, services, platform)
        request, about_code = _with_code(request, platform, options)
        if request.command:
            warnings += _command_warnings(request, options)
        if platform != "slurm":  # its nodes see this machine's disk
            warnings += _paths_of_this_machine(request)
        made = PLATFORMS[platform].render(request)
        _refuse_overwriting(made, options)
        _write(made, options.to)
    except _RefusedError as error:
        print(f"pod-agent init: {error}", file=sys.stderr)
        return 2
    for warning in warnings:
        print(f"! {warning}")
    _print_next_steps(platform, request, made, options, about_code)
    return 0


class _RefusedError(Exception):
    """Something is missing, or does not fit."""


# --- what is wanted ----------------------------------------------------------------------------


class _Questions:
    """Asks at a terminal; elsewhere takes defaults, and keeps what has none."""

    def __init__(self) -> None:
        self.may_ask = sys.stdin.isatty() and sys.stderr.isatty()
        self.missing: list[str] = []

    def answer(  # noqa: PLR0913 - a question
        self,
        given: T | None,
        option: str,
        what: str,
        read: Callable[[str], T],
        default: str = "",
        *,
        is_needed: bool = True,
    ) -> T | None:
        """Return what is given, else the user's answer, else the default; None if it is missing.

        `is_needed`: without a terminal it must be given, since its default is only a suggestion.
        """
        if given is not None:
            return given
        if self.may_ask:
            return self._asked(what, read, default)
        if is_needed:
            self.missing.append(f"{option} ({what})")
            return None
        return read(default) if default else None

    def _asked(self, what: str, read: Callable[[str], T], default: str) -> T | None:
        """Ask until the answer can be read; an empty one takes the default."""
        shown = f" [{default}]" if default else ""
        while True:
            print(f"{what}{shown} ", end="", file=sys.stderr, flush=True)
            line = sys.stdin.readline()
            if not line:
                raise _RefusedError("the input has ended")
            try:
                return read(line.strip() or default)
            except ValueError as error:
                print(f"  {error}", file=sys.stderr)

    def refuse_missing(self) -> None:
        """Raise with all that is missing."""
        if self.missing:
            raise _RefusedError(f"not given: {'; '.join(self.missing)}")


def _request(options: argparse.Namespace) -> tuple[Request, str]:
    """Return what the files are wanted for, and the platform."""
    questions = _Questions()
    if options.command is not None and options.recipe:
        raise _RefusedError(f"either the recipe {options.recipe}, or a command after --")
    if options.command is not None and not options.command:
        raise _RefusedError("-- with no command after it")

    # Which platform, which job?
    platform = questions.answer(
        options.platform,
        "PLATFORM",
        f"platform: {', '.join(PLATFORMS)}",
        name_among("platform", PLATFORMS),
        "slurm",
    )
    job: str | None = OWN_COMMAND
    if options.command is None:
        job = questions.answer(
            options.recipe,
            "RECIPE",
            f"recipe: {', '.join(presets())}",
            name_among("recipe", BY_NAME),
            "verl-grpo",
        )
    if platform is not None:
        _refuse_foreign(options, platform)

    # How many nodes, of which size? The hosts are counted.
    if platform == "ssh":
        what = "machines, the head first, with commas between them"
        options.hosts = questions.answer(options.hosts, "--hosts", what, _hosts)
        count = len(options.hosts or ())
        if count and options.nodes not in {None, count}:
            raise _RefusedError(f"--nodes {options.nodes}, and --hosts names {count}")
        options.nodes = count or options.nodes
    # On RunPod pods have a slow network between them: one pod, before several.
    is_one_pod = platform == "runpod" and job != "rehearsal"
    usual_nodes = "1" if is_one_pod else "2"
    nodes = questions.answer(
        options.nodes, "--nodes", "nodes, the head among them", _at_least_one, usual_nodes
    )
    usual_gpus = "4" if is_one_pod and nodes == 1 else "8"
    if job == "rehearsal":
        usual_gpus = str(PLATFORMS[platform].rehearsal_gpus if platform else 0)
    gpus = questions.answer(
        options.gpus,
        "--gpus",
        "GPUs of each node",
        whole_number,
        usual_gpus,
        is_needed=job != "rehearsal",
    )
    if platform is None or job is None:
        questions.refuse_missing()
        raise AssertionError  # something was missing

    # In which form does it run there, and what does the job need?
    variant = _variant(options, platform, job, nodes or 1, gpus or 0, questions)
    why_not = misfit(platform, variant, job, nodes or 1)
    if why_not:
        raise _RefusedError(why_not)
    if platform == "runpod":
        _check_runpod(options, nodes or 1, gpus or 0, in_cluster=variant == "cluster")
    _ask_for_the_job(options, platform, variant, job, questions)
    questions.refuse_missing()
    _check_place(options, platform)

    agent = _agent_file(options, platform)
    return Request(
        job,
        nodes or 1,
        gpus or 0,
        agent,
        variant,
        command=tuple(options.command or ()),
        image=options.image or "",
        model=options.model or "",
        data=options.data or "",
        gpu_type=options.gpu_type or "",
        center=options.center or "",
        volume=options.volume or "",
        partition=options.partition or "",
        group_nodes=options.group_nodes or "",
        account=options.account or "",
        time=options.time or "",
        python=options.python or "",
        fleet=options.fleet or "",
        hosts=options.hosts or (),
        is_spot=options.spot,
        has_wandb=options.wandb,
        has_hf_token=options.hf_token,
    ), platform


def _refuse_foreign(options: argparse.Namespace, platform: str) -> None:
    """Raise for an option that this platform has no use for."""
    for name in sorted(_OF_SOME_PLATFORMS - {*PLATFORMS[platform].takes}):
        if getattr(options, name) in {None, False}:
            continue
        others = [other for other, known in PLATFORMS.items() if name in known.takes]
        option = f"--{name.replace('_', '-')}"
        raise _RefusedError(f"{platform} has no {option}, which is for {', '.join(others)}")


def _check_runpod(options: argparse.Namespace, nodes: int, gpus: int, *, in_cluster: bool) -> None:
    """Raise for what RunPod does not rent; a short name of a GPU becomes its id."""
    try:
        check_counts(nodes, gpus, in_cluster=in_cluster)
        if options.gpu_type:
            options.gpu_type = runpod_gpu(options.gpu_type, in_cluster=in_cluster).id
    except ValueError as error:
        raise _RefusedError(str(error)) from None


def _check_place(options: argparse.Namespace, platform: str) -> None:
    """Raise for a volume or a place in another form than the platform reads."""
    is_mounted = "://" in (options.volume or "") or on_kubernetes(options.center or "")
    if platform == "skypilot" and options.volume and not is_mounted:
        known = f"--volume {options.volume}: a bucket has its store before it"
        buckets = f"s3://{options.volume} or gs://{options.volume}"
        raise _RefusedError(f"{known}, as in {buckets}; a volume of SkyPilot is for --center k8s")
    if platform == "dstack" and options.center:
        if not options.volume:
            raise _RefusedError("--center is where dstack makes the volume: add --volume NAME")
        if not all(options.center.partition("/")):
            raise _RefusedError(f"--center {options.center}: expected BACKEND/REGION")


def _variant(  # noqa: PLR0913 - what it depends on
    options: argparse.Namespace,
    platform: str,
    job: str,
    nodes: int,
    gpus: int,
    questions: _Questions,
) -> str:
    """Return the container or the kind."""
    known = PLATFORMS[platform]
    if not known.flag:
        return ""
    given = getattr(options, known.flag)
    if given is not None and given not in known.variants:
        takes = f"--{known.flag} {' or '.join(known.variants)}"
        raise _RefusedError(f"{platform} has no {given}; it takes {takes}")

    default = default_variant(platform, job, nodes, gpus)
    what = f"{known.flag}: {', '.join(known.variants)}"
    read = name_among(known.flag, known.variants)
    option = f"--{known.flag}"
    return questions.answer(given, option, what, read, default, is_needed=False) or default


def _ask_for_the_job(
    options: argparse.Namespace, platform: str, variant: str, job: str, questions: _Questions
) -> None:
    """Ask for model, data, image and Python, where the job needs them."""
    preset = preset_of(job)
    if preset.model:
        what = "model, an id on the hub or a path on the nodes"
        options.model = questions.answer(
            options.model, "--model", what, _word, preset.model, is_needed=False
        )
    if PLATFORMS[platform].asks_volume and job != "rehearsal":
        what = f"{PLATFORMS[platform].asks_volume}, which keeps the model; empty: none"
        options.volume = questions.answer(
            options.volume, "--volume", what, _word_or_none, is_needed=False
        )
    needs = missing_image(platform, variant, job)
    if needs:
        options.image = questions.answer(options.image, "--image", f"an image with {needs}", _word)
    if missing_python(platform, variant, job):
        what = (
            "the Python that has the framework, such as ~/venv/bin/python; or --container"
            " apptainer, pyxis or podman"
        )
        options.python = questions.answer(options.python, "--python", what, _word)


# --- services and groups ------------------------------------------------------------------------


def _services(
    options: argparse.Namespace, environ: Mapping[str, str], platform: str, request: Request
) -> Path | None:
    """Return the user's own file for AGENT_SERVICES; None without one."""
    named = environ.get("AGENT_SERVICES", "").strip()
    path: Path | None = options.services
    if path is None and named and "services" in PLATFORMS[platform].takes:
        path = Path(named).expanduser()
    if path is not None and request.preset.services:
        own = f"{request.job} writes a {SERVICES} of its own: add your tables to that one"
        raise _RefusedError(f"--services {path}: {own}")
    return path


def _with_groups(request: Request, services: Path | None, platform: str) -> Request:
    """Return the request with its groups; raise for nodes or disks on which they cannot run."""
    try:
        request = with_groups(request, services)
    except ValueError as error:
        raise _RefusedError(str(error)) from None
    where = request.group_nodes
    if where and not request.groups:
        raise _RefusedError(f"--group-nodes {where}: the run has no groups")
    if where and platform == "kubernetes" and not all(where.partition("=")):
        raise _RefusedError(f"--group-nodes {where}: expected a label of nodes, LABEL=VALUE")
    if where and request.variant in {"trainjob", "pytorchjob"}:
        raise _RefusedError(f"--group-nodes {where}: {request.variant} has one kind of pods; lws")
    lacks = missing_disk(platform, request)
    if lacks:
        raise _RefusedError(lacks)
    return request


# --- the code of a command ----------------------------------------------------------------------


def _with_code(request: Request, platform: str, options: argparse.Namespace) -> tuple[Request, str]:
    """Return the request with the code of its command, and a line about it."""
    if not request.command:
        if options.code is not None:
            raise _RefusedError("--code is for a command of your own, after --")
        return request, ""
    try:
        code, about = find_code(
            request.command, options.code, options.to, shared_disk=platform == "slurm"
        )
    except CodeError as error:
        raise _RefusedError(str(error)) from None
    return replace(request, code=code), f"The code: {about}"


def _paths_of_this_machine(request: Request) -> list[str]:
    """Return a warning for a model or data that lie here: nothing but the code is sent."""
    given = {"--model": request.model, "--data": request.data}
    return [
        f"{option} {path} is on this machine, and nothing copies it: the nodes read that path on"
        " their own disk, or a mounted one"
        for option, path in given.items()
        if PurePosixPath(path).is_absolute() and Path(path).exists()
    ]


def _command_warnings(request: Request, options: argparse.Namespace) -> list[str]:
    """Return what a node would warn of; raise for what it would refuse."""
    try:
        return command_warnings(request.command, options.code or Path())
    except CodeError as error:
        raise _RefusedError(str(error)) from None


# --- the agent's file --------------------------------------------------------------------------


def _agent_file(options: argparse.Namespace, platform: str) -> AgentFile:
    """Return how nodes get the agent: as the user says, else as it fits the platform."""
    known = PLATFORMS[platform]
    url = options.agent_url
    if url and options.agent:
        raise _RefusedError("either --agent or --agent-url")
    if bool(url) != bool(options.agent_sha256):
        raise _RefusedError("--agent-url and --agent-sha256 go together: dist/SHA256SUMS has it")

    if url:
        why = "published; each node fetches it and verifies its SHA-256."
        if platform == "slurm":
            why = "published; fetch.sh fetches it and verifies its SHA-256."
        name = PurePosixPath(urlsplit(url).path).name  # without the query of a signed URL
        if name.endswith(".whl"):
            agent = AgentFile("wheel", name, why, url=url, sha256=options.agent_sha256)
        else:
            agent = AgentFile("one file", ONE_FILE, why, url=url, sha256=options.agent_sha256)
    elif options.agent:
        agent = _given_file(options.agent)
    else:
        here = one_file_here() if known.why_one_file else None
        if here is not None:
            agent = AgentFile("one file", ONE_FILE, known.why_one_file, here.read_bytes())
        else:
            name, content = packed_wheel()
            agent = AgentFile("wheel", name, known.why_wheel, content)
    return agent


def _given_file(path: Path) -> AgentFile:
    """Return the file that --agent names."""
    if not path.is_file():
        raise _RefusedError(f"--agent {path}: there is no such file")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _RefusedError(f"--agent {path}: {error_text(error)}") from None
    if not is_zipfile(BytesIO(content)):
        what = "is neither the one file nor a wheel of the agent"
        raise _RefusedError(f"--agent {path} {what}; a script of your own is sent by --code FOLDER")
    if path.suffix == ".whl":
        return AgentFile("wheel", path.name, "the wheel that --agent names.", content)
    why = "the one file that --agent names: it needs neither pip nor an index."
    return AgentFile("one file", ONE_FILE, why, content)


# --- output ------------------------------------------------------------------------------------


def _refuse_overwriting(made: StartFiles, options: argparse.Namespace) -> None:
    """Raise if a file with another content exists."""
    existing = []
    for file in made.files:
        target = options.to / file.name
        is_same = target.is_file() and target.read_bytes() == file.content
        if target.exists() and not is_same and not file.is_made_again:
            existing.append(file.name)
    if existing and not options.force:
        exist = "exist" if len(existing) > 1 else "exists"
        remedy = "Move it away, choose --to FOLDER, or add --force to overwrite"
        raise _RefusedError(f"{', '.join(existing)} {exist}. {remedy}")


def _write(made: StartFiles, folder: Path) -> None:
    """Write the files; raise if the folder cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in made.files:
            target = folder / file.name
            target.write_bytes(file.content)  # Linux reads it: no line ends of Windows
            if file.is_program:
                target.chmod(0o755)
            print(f"wrote {target}")
    except OSError as error:
        raise _RefusedError(f"--to {folder}: {error_text(error)}") from None


def _print_next_steps(
    platform: str,
    request: Request,
    made: StartFiles,
    options: argparse.Namespace,
    about_code: str,
) -> None:
    """Print what to know, and every command from here to the running job."""
    for note in made.notes:
        print(f"! {note}")
    print(f"The agent: {request.agent.why}")
    if about_code:
        print(about_code)
    print("Nothing in these files is to be changed. Type:")
    here = shlex.quote(str(options.to))
    steps = [f"cd {here}"] if options.to.resolve() != Path.cwd() else []
    print("\n".join(f"  {step}" for step in [*steps, *made.steps]))
    if not request.is_rehearsal:
        gpus = PLATFORMS[platform].rehearsal_gpus
        without = f"with {gpus} GPU a node, without" if gpus else "without GPUs,"
        print(f"First the same for cents, {without} model and data:")
        print(f"  {_rehearsal(platform, request, options)}")
    print("What a node would do, typed on one (elsewhere it names what that machine lacks):")
    variables = variables_of_plan(request, made.train_data)
    print(f"  {variables} pod-agent plan{request.words_of_command}")
    if not request.is_rehearsal:
        _print_model_place(made, request)


def _print_model_place(made: StartFiles, request: Request) -> None:
    """Print where the model will be, how to get it, and how it could be lost."""
    model = made.model
    condition = ""
    if request.command:
        condition = ", if your command saves it to $AGENT_CHECKPOINTS or {checkpoints}"
    print(f"Your model will be in {model.where}{condition}{'; get it by:' if model.get else '.'}")
    for command in model.get:
        print(f"  {command}")
    if model.warning:
        print(f"! {model.warning}")


def _rehearsal(platform: str, request: Request, options: argparse.Namespace) -> str:
    """Return the command that writes the same run as a rehearsal, into a folder beside."""
    words = ["pod-agent", "init", platform, "rehearsal"]
    known = PLATFORMS[platform]
    if platform != "ssh":
        words += ["--nodes", str(request.nodes)]
    if known.flag:
        kind = "pods" if request.variant == "cluster" else request.variant
        words += [f"--{known.flag}", kind]
    for name in ("center", "volume", "fleet", "partition", "account", "hosts"):
        given = getattr(options, name)
        if given:
            text = ",".join(given) if name == "hosts" else given
            words += [f"--{name}", text]
    if options.agent:
        words += ["--agent", str(options.agent.absolute())]  # it is typed in another folder
    if options.agent_url:
        words += ["--agent-url", options.agent_url, "--agent-sha256", options.agent_sha256]
    return shlex.join([*words, "--to", "rehearsal"])
