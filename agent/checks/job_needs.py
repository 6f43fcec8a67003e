"""Checks of the job: program, framework, disk for checkpoints, W&B key."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from agent.base.text import first_names, nearly_equal
from agent.base.versions import version_list
from agent.checks.finding import Finding, Level, fail, ok, warn
from agent.frameworks import recipe_of
from agent.frameworks.recipe import MisfitError, count_of
from agent.job.framework_question import why_not_asked
from agent.job.job import NUMBERS, fill_expected, is_computed, version_of
from agent.node.job_script import IGNORE
from agent.settings.jobs import runs_by_shares

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from agent.checks.finding import CheckedNode, Result
    from agent.job.job import Job
    from agent.node.facts import ScriptAction, ScriptLine
    from agent.settings.jobs import RecipeInfo
    from agent.settings.model import Settings


FRAMEWORK = "framework"
CHECKPOINTS = "checkpoints"
INPUTS = "inputs"
SERVICE_GPUS = "GPUs of services"
SCRIPT = "job's script"
PLACEHOLDERS = "placeholders"
PLAN_CHECKS = (FRAMEWORK, CHECKPOINTS, INPUTS, SERVICE_GPUS)
_GIB = 1 << 30
_CHECKPOINT_FACTOR = 7  # a checkpoint's size by its weights: 2 bytes, plus 12 of the optimizer


def recipe_findings(known: RecipeInfo, node: CheckedNode, folder: str) -> tuple[Finding, ...]:
    """Check a recipe's framework, model and data, and the disk of its checkpoints."""
    results: list[tuple[str, Result | None]] = []
    if known.needs:
        results += [(INPUTS, result) for result in _inputs(node)]
    results += [(FRAMEWORK, _framework(known, node))]
    results += [(FRAMEWORK, result) for result in _packages(known, node)]
    if known.needs:
        results += [(CHECKPOINTS, result) for result in _checkpoints(node, folder)]
    return tuple(Finding(name, *result) for name, result in results if result is not None)


def _framework(known: RecipeInfo, node: CheckedNode) -> Result | None:
    """Without its framework a job fails only after the boot; another version may fail later."""
    framework = node.facts.framework
    if not known.framework or framework is None or not node.topology.is_head:
        return None
    if not framework.folder:
        return _missing(known, node)

    _, warning = version_of(known, framework)
    if warning:
        versions = version_list(recipe_of(known).VERSIONS)
        remedy = "If it refuses an argument, install a known one, or give your own command after --"
        return warn(f"{known.framework} {warning}; known are {versions}", remedy)
    name = f"{known.framework} {framework.version}".strip()
    return ok(f"{name} in {framework.folder}")


def _packages(known: RecipeInfo, node: CheckedNode) -> Iterator[Result]:
    """An engine or a package for adapters that is missing ends the job only after the boot."""
    framework = node.facts.framework
    ray = node.facts.ray
    if framework is None or not framework.folder or not (ray.libraries or ray.packages):
        return
    settings = node.settings
    if (
        "AGENT_ROLLOUT" in known.takes
        and settings.rollout == "sglang"
        and ("sglang" not in ray.libraries)
    ):
        what = f"AGENT_ROLLOUT=sglang: sglang is not installed for {node.facts.job_python}"
        yield warn(what, "Install verl[sglang] there, in the version of the installed verl")
    if settings.lora_rank is not None and "peft" not in ray.packages:
        what = f"AGENT_LORA_RANK: peft is not installed for {node.facts.job_python}"
        yield warn(what, "Install peft there: the framework trains adapters with it")
    if settings.backend == "megatron" and "megatron-core" not in ray.packages:
        what = f"AGENT_BACKEND=megatron: megatron-core is not installed for {node.facts.job_python}"
        yield warn(what, "Install it with verl's other packages for Megatron, or use its image")


def unasked_framework(job: Job | None) -> Iterator[Finding]:
    """Without the framework's own check a wrong argument ends the job only after the boot."""
    why = "" if job is None else why_not_asked(job)
    if why:
        what = f"the installed framework is not asked whether it accepts the command: {why}"
        remedy = "Try the command's arguments once where that framework is installed"
        yield Finding(FRAMEWORK, Level.WARN, what, remedy)


def _missing(known: RecipeInfo, node: CheckedNode) -> Result:
    """Report a missing framework: a failure unless the run may still install it."""
    what = f"{known.framework} is not installed for {node.facts.job_python}"
    versions = recipe_of(known).VERSIONS
    which = f" ({version_list(versions)})" if versions else ""
    if node.topology.given_ray is not None or _may_be_installed_later(node.settings):
        return warn(f"{what} here", f"Install the version of the run here, too{which}")
    return fail(what, f"Install it there{which}, or start the agent in its checkout")


def _may_be_installed_later(settings: Settings) -> bool:
    """Return whether a part of the run may provide a missing program or framework."""
    uploads = settings.runtime_env or settings.working_dir
    return bool(uploads or settings.prepare or settings.prepare_each or settings.services)


def _inputs(node: CheckedNode) -> Iterator[Result]:
    """A wrong path fails only after the boot. Data may be on the head alone, the model may not."""
    if _may_be_installed_later(node.settings) or node.topology.given_ray is not None:
        return

    # Is it there?
    remedy = "Correct the path, mount its disk, or create it by AGENT_PREPARE"
    for name, path in node.facts.missing_inputs.items():
        if node.topology.is_head or name == "AGENT_MODEL":
            yield warn(f"{name}: {path} does not exist on this node", remedy)

    # May this user read it?
    remedy = f"Let user {node.facts.uid} read it, or run the agent and Ray as its owner"
    for name, path in node.facts.unreadable_inputs.items():
        if node.topology.is_head or name == "AGENT_MODEL":
            yield warn(f"{name}: {path} may not be read by the user of this agent", remedy)


def _checkpoints(node: CheckedNode, folder: str) -> Iterator[Result]:
    """A container's own disk is lost with it; a full one fails the run hours later."""
    # Can the head write there, as it does before it submits the job?
    fault = node.facts.checkpoints_fault
    if fault and node.topology.is_head:
        level = warn if _may_be_installed_later(node.settings) else fail
        remedy = "Set AGENT_CHECKPOINTS to a folder that this user may write to"
        yield level(f"no place for them in {folder}: {fault}", remedy)
        return

    # Does the disk outlive the pod?
    facts = node.facts
    mount = facts.checkpoints
    if mount is not None and mount.is_containers_own:
        at = f"{mount.kind} at {mount.folder}"
        what = f"{folder} lies on no volume ({at}): it is lost with this pod"
        yield warn(what, "Set AGENT_CHECKPOINTS to a folder of a volume that all nodes share")

    # Has it room for two checkpoints?
    free = facts.checkpoints_free
    wanted = 2 * _CHECKPOINT_FACTOR * facts.model_bytes
    if free is not None and free < wanted:
        what = (
            f"{folder}: {free // _GIB} GiB free; two checkpoints of this model's weights "
            f"({facts.model_bytes / _GIB:.1f} GiB) with their optimizer may take {wanted // _GIB}"
        )
        yield warn(what, "Set AGENT_CHECKPOINTS to a larger disk, or have the recipe keep fewer")


def job_program(node: CheckedNode) -> tuple[Finding, ...]:
    """A missing program would fail with exit code 127, only after the boot."""
    fault = node.facts.program_fault
    topology = node.topology
    by_shares = runs_by_shares(node.settings)  # then every node runs it
    elsewhere = not (topology.is_head or by_shares) or topology.given_ray is not None
    if not fault or elsewhere or _may_be_installed_later(node.settings):
        return ()
    later = "AGENT_PREPARE_EACH" if by_shares else "AGENT_PREPARE or AGENT_WORKING_DIR"
    remedy = f"Correct the command after --, put its program on PATH, or provide it by {later}"
    return (Finding("job", Level.FAIL, f"the program after --: {fault}", remedy),)


_CLEANS_UP = "Remove it: the agent ends what former runs left"
_SCRIPT_ACTIONS: Mapping[ScriptAction, tuple[str, str]] = {
    "start": (
        "would start a Ray beside the agent's",
        "Remove it: the agent starts Ray on every node; options of it go into AGENT_RAY_ARGS",
    ),
    "stop": ("would end the agent's Ray", _CLEANS_UP),
    "submit": (
        "would submit a second job, which the agent neither follows nor stops",
        "Write only the command after its `--`; AGENT_RUNTIME_ENV takes its --runtime-env",
    ),
    "kill": (
        "would end the agent or its Ray",
        f"{_CLEANS_UP}; a program of your own needs a closer name, as in `pkill -f my_server.py`",
    ),
    "agent": (
        "would start an agent within the agent's job",
        "Write only the job's command, what follows its `--`",
    ),
    "size": (
        "fails, since Ray runs already and accepts no number of GPUs or CPUs",
        "Write `ray.init()`: the job has those of all nodes",
    ),
    "address": (
        "would leave the agent's Ray",
        "Write `ray.init()`: RAY_ADDRESS names the agent's Ray",
    ),
}
"""What a line of a script does under the agent, and what to write instead."""


def job_script(node: CheckedNode) -> Iterator[Finding]:
    """A script made for a Ray of its own ends the agent's, or runs beside it."""
    topology = node.topology
    is_run_here = topology.is_head or runs_by_shares(node.settings)
    if not is_run_here or topology.is_idle:
        return
    yield from script_findings(node.facts.script_lines)


def script_findings(lines: Iterable[ScriptLine]) -> Iterator[Finding]:
    """Say what each line of a script would do, and what to write instead."""
    for line in lines:
        does, instead = _SCRIPT_ACTIONS[line.action]
        what = f"{line.path}, line {line.number}: `{line.text}` {does}"
        level = Level.FAIL
        if not line.is_sure:
            level = Level.WARN
            what += ", if it is reached"
        remedy = f"{instead}. To insist, end the line with `{IGNORE}`"
        yield Finding(SCRIPT, level, what, remedy)


_BRACES = re.compile(r"(?<!\$)\{([a-z][a-z_]*)( ?[-+*/%][^{}]*)?\}")
"""A word in braces, or one in a computation."""


_OF_SERVICE = re.compile(r"(?<!\$)\{([a-z]+):[A-Za-z0-9-]+\}")


def placeholder_slips(texts: Iterable[tuple[str, str, Sequence[str]]]) -> tuple[Finding, ...]:
    """Find words in braces that are no placeholders: they would reach the command as they are.

    Each text has the words that name its source, and the placeholders that are filled in there.
    """
    findings = {}
    for source, text, known in texts:
        for name, computed in _BRACES.findall(text):
            word = f"{{{name}{computed}}}"
            if name in known and (not computed or is_computed(word)):
                continue
            near = [other for other in known if nearly_equal(name, other) or other.startswith(name)]
            if computed and not near:
                continue  # braces of another language
            what = f"{word} in {source} is no placeholder and stays as it is"
            remedy = f"Placeholders are {' '.join(f'{{{name}}}' for name in known)}"
            if near:
                remedy = f"Did you mean {{{near[0]}}}?"
            if computed:
                remedy = f"{', '.join(NUMBERS)} take a sign and a number: {{nodes-1}}, {{nodes/2}}"
            findings[source, word] = Finding(PLACEHOLDERS, Level.WARN, what, remedy)
        for slip in _OF_SERVICE.finditer(text):
            if slip[1] != "address" and nearly_equal(slip[1], "address"):
                what = f"{slip[0]} in {source} is no placeholder and stays as it is"
                meant = slip[0].replace(slip[1], "address", 1)
                findings[source, slip[0]] = Finding(
                    PLACEHOLDERS, Level.WARN, what, f"Did you mean {meant}?"
                )
    return tuple(findings.values())


_VARIABLE = re.compile(r"\$(?:[A-Z_][A-Z0-9_]*|\{[A-Z_][A-Z0-9_]*\})")
_SHELLS = {"bash", "dash", "sh", "zsh"}


def unexpanded_variables(argv: Sequence[str]) -> Iterator[Finding]:
    """Without a shell a variable of the environment reaches the command as its name."""
    if not argv or PurePosixPath(argv[0]).name in _SHELLS:
        return
    names = list(dict.fromkeys(name for word in argv for name in _VARIABLE.findall(word)))
    if names:
        what = f"{first_names(names)} in the job's command stays as it is: no shell expands it"
        yield Finding(PLACEHOLDERS, Level.WARN, what, "Start a shell: -- bash -c '…'")


def command_sizes(argv: Sequence[str], nodes: int, gpus: int) -> Iterator[Finding]:
    """A computed size should be whole on the expected nodes; other nodes may join."""
    try:
        fill_expected(argv, nodes, gpus)
    except MisfitError as error:
        what = f"the job's command does not fit {count_of(nodes, 'node')} like this one: {error}"
        remedy = "Other nodes must join, or it is refused (78): change their number or the command"
        yield Finding("job's command", Level.WARN, what, remedy)


def stall_action(node: CheckedNode) -> Result | None:
    """Without a limit no stall is found, so nothing can follow one."""
    action = node.settings.on_stall
    if node.settings.stall or action not in {"retry", "stop"}:
        return None
    return warn(
        f"{action} never follows, as AGENT_STALL=0 turns off all limits of a stall",
        "Unset AGENT_STALL, or AGENT_ON_STALL",
    )


_KEY = re.compile(r"(?:[^-]*-)?[\w-]{40,}", re.ASCII)  # W&B's own server puts its name before it


def wandb_key(node: CheckedNode) -> Result:
    """W&B refuses a malformed key only when the job starts to log, long after the boot."""
    secret = node.settings.wandb_api_key
    if secret is None:
        login = node.facts.wandb_login
        return ok("W&B has this machine's login" if login else "none: W&B stays offline")
    if _KEY.fullmatch(secret.reveal()):
        return ok("well-formed")
    what = "W&B's keys have 40 or more letters, digits, dashes and underscores; this one has not"
    remedy = "Copy WANDB_API_KEY again from W&B's settings, or unset it: W&B then stays offline"
    return warn(what, remedy)
