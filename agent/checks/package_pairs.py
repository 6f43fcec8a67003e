"""Pairs of installed packages that are known not to fit each other.

Each pair was seen in an issue thread, which it names. A pair is a warning of `pod-agent doctor`,
since the job may not use it, and the first suspect where a failed run has no known cause.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.value import Value
from agent.base.versions import is_in, release_of
from agent.checks.finding import ok, warn
from agent.node.python_facts import TORCH

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.checks.finding import CheckedNode, Result
    from agent.node.facts import RayPython


class Pair(Value):
    """Two packages that do not fit each other in these versions."""

    first: str
    first_range: str  # bounds of the version, all of which count: `>=4.54,<5`
    second: str
    second_range: str
    effect: str
    remedy: str
    source: str  # the thread or file that shows it


PAIRS = (
    Pair(
        "fastapi",
        ">=0.137",
        "prometheus-fastapi-instrumentator",
        "<8.0.2",
        "an engine's server answers each request with 500",
        "pip install 'fastapi<0.137'",
        "NovaSky-AI/SkyRL#1810",
    ),
    Pair(
        "transformers",
        ">=4.54",
        "vllm",
        ">=0.9,<0.10",
        "vllm cannot be imported ('aimv2' is already used)",
        "pip install 'transformers<4.54'",
        "vllm-project/vllm-ascend#2046",
    ),
    Pair(
        "transformers",
        ">=5",
        "vllm",
        "<0.19.1",
        "vllm fails at its start (all_special_tokens_extended)",
        "pip install 'transformers<5'",
        "vllm-project/vllm#30566",
    ),
    Pair(
        "transformers",
        ">=5",
        "peft",
        "<0.18.1",
        "peft cannot be imported (HybridCache)",
        "pip install 'peft>=0.18.1'",
        "vllm-project/vllm#30566",
    ),
    Pair(
        "transformers",
        "<5",
        "huggingface-hub",
        ">=1",
        "transformers cannot be imported",
        "pip install 'huggingface-hub<1'",
        "transformers: src/transformers/dependency_versions_table.py",
    ),
    Pair(
        "torch",
        ">=2.5",
        "tensordict",
        "<0.6",
        "verl cannot be imported (ForkingPickler)",
        "pip install 'tensordict>=0.6.2'",
        "verl-project/verl#700",
    ),
    Pair(
        "numpy",
        ">=2",
        "torch",
        "<2.3",
        "torch was compiled for numpy 1",
        "pip install 'numpy<2'",
        "vllm-project/vllm#5594",
    ),
    Pair(
        "numpy",
        ">=2",
        "vllm",
        "<0.5.1",
        "its server cannot be imported (numpy.lib.function_base)",
        "pip install 'numpy<2'",
        "vllm-project/vllm#5587",
    ),
    Pair(
        "numpy",
        ">=2.3",
        "numba",
        "<0.62",
        "numba cannot be imported",
        "pip install 'numpy<2.3'",
        "bpwhelan/GameSentenceMiner#126",
    ),
    Pair(
        "numpy",
        ">=2.2",
        "numba",
        "<0.61.2",
        "numba cannot be imported",
        "pip install 'numpy<2.2'",
        "KytraScript/ComfyUI_MatAnyone_Kytra#3",
    ),
    Pair(
        "numpy",
        ">=2.1",
        "numba",
        "<0.61",
        "numba cannot be imported",
        "pip install 'numpy<2.1'",
        "felixbmuller/SAST#1",
    ),
)
"""To add a pair, add it here and its packages to REPORTED_PACKAGES of node/python_facts.py."""


class Misfit(Value):
    """Two installed packages that do not fit each other, and what to do."""

    what: str
    remedy: str


def misfits(python: RayPython) -> tuple[Misfit, ...]:
    """Return the pairs of a Python's packages that do not fit each other, the surest first."""
    return (*_built_for_another_torch(python), *_known(python))


def _known(python: RayPython) -> Iterator[Misfit]:
    """Yield the pairs of the table that are installed."""
    for pair in PAIRS:
        first = python.packages.get(pair.first, "")
        second = python.packages.get(pair.second, "")
        if not (_is_in(first, pair.first_range) and _is_in(second, pair.second_range)):
            continue
        what = f"{pair.first} {first} and {pair.second} {second} do not fit: {pair.effect}"
        yield Misfit(what, f"`{pair.remedy}` in the image")


def _built_for_another_torch(python: RayPython) -> Iterator[Misfit]:
    """Yield compiled packages whose metadata names another torch: their symbols differ."""
    installed = python.packages.get(TORCH, "")
    if not installed:
        return
    for package, built_for in python.built_for.items():
        wanted = release_of(built_for)
        if release_of(installed)[: len(wanted)] == wanted:
            continue
        what = f"{package} was built for torch {built_for}, and torch {installed} is installed"
        remedy = f"Install torch {built_for}, or the {package} of torch {installed}"
        yield Misfit(what, remedy)


def _is_in(version: str, versions: str) -> bool:
    """Return whether a version is in a range; False without a version."""
    release = release_of(version)
    return bool(release) and is_in(release, versions)


def package_pairs(node: CheckedNode) -> Result | None:
    """Packages that do not fit each other end the job at its start, or at its first request."""
    if not node.facts.ray.packages:
        return None
    pairs = misfits(node.facts.ray)
    if not pairs:
        return ok("no pair that is known not to fit")
    what = "; ".join(misfit.what for misfit in pairs)
    return warn(what, "; ".join(dict.fromkeys(misfit.remedy for misfit in pairs)))
