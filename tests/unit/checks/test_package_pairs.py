"""Pairs of packages that do not fit each other are named before and after a run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.checks import run_checks
from agent.checks.finding import Finding, Level
from agent.checks.package_pairs import PAIRS, Pair, misfits
from agent.node.python_facts import REPORTED_PACKAGES, ray_facts
from support.worlds import MACHINE, settings_of, topology_of

if TYPE_CHECKING:
    from pathlib import Path

    from agent.node.facts import RayPython


def python_with(packages: dict[str, str], built_for: dict[str, str] | None = None) -> RayPython:
    """Return a Python with some packages."""
    return replace(MACHINE.ray, packages=packages, built_for=built_for or {})


def inside(bounds: str) -> str:
    """Return a version that just fits the bounds: the lowest allowed, or one below the upper."""
    lowest = [bound[2:] for bound in bounds.split(",") if bound.startswith(">=")]
    return lowest[0] if lowest else "0.0.1"


def outside(bounds: str) -> str:
    """Return a version that just misses the bounds."""
    upper = [bound[1:] for bound in bounds.split(",") if bound.startswith("<")]
    return upper[0] if upper else "0.0.1"


@pytest.mark.parametrize(
    "pair", PAIRS, ids=[f"{p.first}-{p.second}-{n}" for n, p in enumerate(PAIRS)]
)
def test_each_pair_is_found_within_its_bounds_only(pair: Pair) -> None:
    """One version further, on either side, nothing is said of it."""
    bad = {pair.first: inside(pair.first_range), pair.second: inside(pair.second_range)}
    assert pair.effect in " ".join(misfit.what for misfit in misfits(python_with(bad)))
    for name, bounds in ((pair.first, pair.first_range), (pair.second, pair.second_range)):
        for version in (outside(bounds), "unknown"):
            found = misfits(python_with({**bad, name: version}))
            of_pair = [misfit for misfit in found if f"`{pair.remedy}`" in misfit.remedy]
            assert [misfit for misfit in of_pair if pair.effect in misfit.what] == []
        assert misfits(python_with({name: bad[name]})) == ()


def test_each_package_of_a_pair_is_read() -> None:
    """A pair whose version nobody reads is never found."""
    assert {name for pair in PAIRS for name in (pair.first, pair.second)} <= REPORTED_PACKAGES


@pytest.mark.parametrize(
    ("built_for", "torch", "is_said"),
    [
        ("2.7.1", "2.7.1+cu128", False),
        ("2.7.1", "2.8.0+cu128", True),
        ("2.6", "2.6.0", False),
        ("2.6", "2.7.0", True),
    ],
)
def test_a_build_for_another_torch_is_named(built_for: str, torch: str, *, is_said: bool) -> None:
    """Its compiled code asks torch for symbols that this torch does not have."""
    found = misfits(python_with({"torch": torch, "vllm": "0.10.0"}, {"vllm": built_for}))
    assert bool(found) is is_said
    if is_said:
        assert (
            found[0].what == f"vllm was built for torch {built_for}, and torch {torch} is installed"
        )


def test_the_torch_of_a_build_is_read_from_its_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pin of an exact torch, or the name of the wheel that was installed by its URL."""
    for name, file, text in (
        (
            "vllm-0.9.1",
            "METADATA",
            "Name: vllm\nRequires-Dist: torch==2.7.0\nRequires-Dist: numpy\n",
        ),
        (
            "flash_attn-2.8.3",
            "direct_url.json",
            '{"url": "https://x/flash_attn-2.8.3+cu12torch2.6cxx11abiFALSE-cp312-cp312-linux_x86_64.whl"}',
        ),
        ("torchaudio-2.7.0", "METADATA", "Name: torchaudio\nRequires-Dist: torch>=2.0\n"),
        ("torch-2.8.0", "METADATA", "Name: torch\n"),
        ("fastapi-0.137.1", "METADATA", "Name: fastapi\n"),
    ):
        folder = tmp_path / f"{name}.dist-info"
        folder.mkdir()
        (folder / file).write_text(text)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    facts = ray_facts()
    assert facts["built_for"] == {"vllm": "2.7.0", "flash-attn": "2.6"}
    assert facts["packages"] == {
        "fastapi": "0.137.1",
        "flash-attn": "2.8.3",
        "torch": "2.8.0",
        "torchaudio": "2.7.0",
        "vllm": "0.9.1",
    }


def _finding(python: RayPython) -> Finding | None:
    facts = replace(MACHINE, ray=python)
    found = run_checks(facts, settings_of({}), topology_of({}), only="packages")
    return found[0] if found else None


def test_the_doctor_warns_of_a_pair() -> None:
    """It warns, since the job may not use them; without packages there is nothing to check."""
    assert _finding(python_with({})) is None
    sound = _finding(
        python_with({"fastapi": "0.136.3", "prometheus-fastapi-instrumentator": "8.0.0"})
    )
    assert sound is not None
    assert sound.level is Level.OK
    bad = _finding(
        python_with({"fastapi": "0.137.1", "prometheus-fastapi-instrumentator": "8.0.0"})
    )
    assert bad is not None
    assert bad.level is Level.WARN
    assert bad.sentence() == (
        "packages: fastapi 0.137.1 and prometheus-fastapi-instrumentator 8.0.0 do not fit: an "
        "engine's server answers each request with 500. `pip install 'fastapi<0.137'` in the image"
    )
