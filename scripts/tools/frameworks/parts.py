"""The suite's parts: each can be run alone, and takes minutes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from agent.base.versions import release_of
from agent.frameworks.openrlhf import OPENRLHF
from agent.frameworks.recipe import MisfitError
from agent.frameworks.slime import SLIME
from agent.frameworks.trl import TRL
from agent.frameworks.verl_keys import VERL
from tools.frameworks.collected_adapters import collected_adapters, saved_checkpoints
from tools.frameworks.commands import Made, made
from tools.frameworks.facts import openrlhf_m, search_r1
from tools.frameworks.faults import Case, Fault
from tools.frameworks.first_sync import first_sync
from tools.frameworks.packages import (
    CHECKOUTS,
    REPO,
    CannotFetchError,
    checkouts,
    environment,
    has_checkouts,
    package,
)
from tools.frameworks.prime_rl_run import read_prime_rl
from tools.frameworks.results import Result, Verdict
from tools.frameworks.started_openrlhf import start_openrlhf
from tools.frameworks.started_verl import start_verl
from tools.frameworks.torchrun_on_pods import torchrun_on_pods
from tools.frameworks.training import NotTrainedError, train_with
from tools.frameworks.trl_on_pods import on_pods, taken_away

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent.base.versions import Version

JUDGE_LIMIT = 3000.0
LONGEST = 600
PUBLISHED = {
    "verl": VERL.releases,
    "openrlhf": tuple(sorted((*OPENRLHF.releases, "0.10.1"), key=release_of)),
    "trl": TRL.releases,
}
"""The checked releases: the newest patch of each minor, and those with changed flags."""
PODS = {"train-trl": on_pods, "notice-trl": taken_away, "torchrun-pods": torchrun_on_pods}
STARTED = {
    "start-verl": start_verl,
    "start-openrlhf": start_openrlhf,
    "first-sync-verl": first_sync,
    "adapters-verl": collected_adapters,
    "checkpoint-verl": saved_checkpoints,
    "prime-rl": read_prime_rl,
}
FACTS = {"openrlhf-m": openrlhf_m.judge_one, "search-r1": search_r1.judge_one}


@dataclass(frozen=True)
class Part:
    """One part: a framework's version, or a real run."""

    name: str
    framework: str
    version: str = ""
    how: Literal["package", "checkout", "facts", "pods", "started"] = "package"

    @property
    def is_possible(self) -> bool:
        """Return whether its sources are here, or can be fetched."""
        return self.framework not in CHECKOUTS or has_checkouts(self.framework)


PARTS = (
    *(
        Part(f"{framework}-{version}", framework, version)
        for framework, versions in PUBLISHED.items()
        for version in versions
    ),
    Part("slime", "slime", SLIME.releases[-1], how="checkout"),
    Part("prime-rl", "prime-rl", how="started"),
    *(Part(name, name, how="facts") for name in FACTS),
    Part("train-trl", "trl", how="pods"),
    Part("notice-trl", "trl", how="pods"),
    Part("torchrun-pods", "trl", how="pods"),
    Part("start-verl", "verl", VERL.releases[-1], how="started"),
    Part("start-openrlhf", "openrlhf", OPENRLHF.releases[-1], how="started"),
    Part("first-sync-verl", "verl", VERL.releases[-1], how="started"),
    Part("adapters-verl", "verl", VERL.releases[-1], how="started"),
    Part("checkpoint-verl", "verl", VERL.releases[-1], how="started"),
)


OF_SOME = {
    "cli.py": (),
    "trl_on_pods.py": ("train-trl", "notice-trl"),
    "agents.py": ("train-trl", "notice-trl"),
    "torchrun_on_pods.py": ("torchrun-pods",),
    "pretended.py": ("start-verl", "start-openrlhf"),
    "started_verl.py": ("start-verl",),
    "inside/verl_scores.py": ("start-verl",),
    "started_openrlhf.py": ("start-openrlhf",),
    "inside/openrlhf_rollout.py": ("start-openrlhf",),
    "stand_ins/": ("start-openrlhf",),
    "collected_adapters.py": ("adapters-verl", "checkpoint-verl"),
    "inside/collected_adapters.py": ("adapters-verl", "checkpoint-verl"),
    "inside/saved_checkpoint.py": ("checkpoint-verl",),
    "inside/slime.py": ("slime",),
    "prime_rl_run.py": ("prime-rl",),
    "inside/prime_rl_program.py": ("prime-rl",),
    "first_sync.py": ("first-sync-verl", "adapters-verl", "checkpoint-verl"),
    "inside/first_sync.py": ("first-sync-verl",),
}
"""Path prefixes of files that only some parts use: a change to them leaves others valid."""


class BrokenError(Exception):
    """The checker itself failed."""


def run(part: Part) -> Result:
    """Run one part; an error of the checker becomes its result."""
    began, sum_before = time.monotonic(), digest(part)
    verdicts: tuple[Verdict, ...] = ()
    broken = detail = ""
    try:
        if part.how == "pods":
            detail = PODS[part.name]()
        elif part.how == "started":
            detail = STARTED[part.name]()
        else:
            verdicts = tuple(judged(part))
        if part.framework == "trl" and verdicts:
            detail, trained = training(part.version)
            verdicts += (trained,)
    except (CannotFetchError, NotTrainedError, BrokenError, ImportError) as error:
        broken = f"not judged: {error}"
    return Result(part.name, sum_before, time.monotonic() - began, verdicts, detail, broken)


def training(version: str) -> tuple[str, Verdict]:
    """Train with one TRL; skip a release that the recipe does not support on CPUs."""
    where = ("trl-grpo", "two processes here", "trained")
    try:
        detail, faults = train_with(version)
    except MisfitError as misfit:
        return "", Verdict(*where, misfit=str(misfit))
    return detail, Verdict(*where, tuple(faults))


def judged(part: Part) -> list[Verdict]:
    """Check every command of one part."""
    commands = list(made(part.framework, version_of(part)))
    cases = [command.case for command in commands if command.case is not None]
    if part.how == "facts":
        judge = FACTS[part.framework]
        faults = {case.name: judge(case) for case in cases}
    else:
        faults = asked(part, cases)
    return [verdict(command, faults) for command in commands]


def version_of(part: Part) -> Version:
    """Return the version for which the recipe is asked."""
    return tuple(int(number) for number in part.version.split(".")) if part.version else ()


def verdict(command: Made, faults: Mapping[str, Sequence[Fault]]) -> Verdict:
    """Combine a command and its findings."""
    found = tuple(faults[command.case.name]) if command.case else ()
    return Verdict(command.recipe, command.nodes, command.how, found, command.misfit)


def asked(part: Part, cases: Sequence[Case]) -> dict[str, list[Fault]]:
    """Check the cases beside the framework's package, in the suite's environment."""
    python = environment("train" if part.framework in {"trl", "slime"} else "judge")
    sources = package if part.how == "package" else lambda name, _version: checkouts(name)
    detail = {
        "package": str(sources(part.framework, part.version)),
        "cases": [
            {"name": c.name, "argv": c.argv, "nodes": c.nodes, "module": c.module} for c in cases
        ],
    }
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "faults.json"
        argv = [str(python), "-m", f"tools.frameworks.inside.{part.framework}", str(out)]
        env = {"PATH": os.defpath, "PYTHONPATH": f"{REPO / 'scripts'}:{REPO}", "HOME": folder}
        try:
            done = subprocess.run(
                argv, input=json.dumps(detail), capture_output=True, text=True,
                timeout=JUDGE_LIMIT, check=False, env=env, cwd=folder,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise BrokenError(f"no end within {JUDGE_LIMIT:g} s") from None
        if done.returncode != 0 or not out.exists():
            raise BrokenError(done.stderr.strip()[-LONGEST:] or f"exit code {done.returncode}")
        found = json.loads(out.read_text(encoding="utf-8"))
    return {name: [Fault(**fault) for fault in faults] for name, faults in found.items()}


def digest(part: Part) -> str:
    """Hash the inputs of a result: the commands, the checkers, and the bundled program."""
    total = hashlib.sha256()
    with contextlib.suppress(ImportError):
        for one in made(part.framework, version_of(part)):
            detail = one.case.argv if one.case else one.misfit
            total.update(
                f"{one.recipe} {one.nodes} {one.how} {detail}".replace(str(REPO), "").encode()
            )
    ours = {"trl": ("trl_grpo.py", "rehearsal.py"), "verl": ("verl_reward.py", "rehearsal.py")}
    names = ("ask_framework.py", *ours.get(part.framework, ()))
    bundled = [REPO / "agent/bundled" / name for name in names]
    for file in [*judges(part), *bundled]:
        total.update(file.read_bytes() if file.exists() else b"")
    return total.hexdigest()[:16]


def judges(part: Part) -> list[Path]:
    """List the suite's files that a part's result depends on: all except other parts' files."""
    folder = REPO / "scripts/tools/frameworks"
    others = [begins for begins, names in OF_SOME.items() if part.name not in names]
    files = sorted(folder.rglob("*.py"))
    return [f for f in files if not str(f.relative_to(folder)).startswith(tuple(others))]
