"""A node's compile caches in a run: seeded by the step, written back by the program."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest
from msgspec.structs import replace

from agent.base import ends, times
from agent.decisions.shared import Want
from agent.job.compile_caches import CompileCaches, seal_of, signer_of
from agent.job.services import CACHES, Placeholders
from agent.node.node_kind import NodeKind
from agent.plan.plan import CACHES_LOG
from agent.processes.cache_program import CachePlace
from agent.processes.cache_program import seed as seed_place
from agent.run import cache_keeper
from agent.run.cache_keeper import CacheLook, is_due
from agent.run.local_services import LocalWork
from support.cache_places import compile_here, make_older
from support.node_runs import node_run_with, node_run_with_caches, unheard

if TYPE_CHECKING:
    from pathlib import Path

    from agent.run.node_run import NodeRun

pytestmark = pytest.mark.anyio
KIND = NodeKind("", "", "x86_64", "ab", "", "3.11.7", {"torch": "2.8.0"})
DONE = ends.JOB_SUCCEEDED.outcome(before="")
FAILED = ends.JOB_FAILED.outcome(code=7, code_name="7", place="", message="", before="")
LOST = ends.HEAD_LOST.outcome()
STOPPED = ends.JOB_STOPPED.outcome(before="")

PATHS = ("triton/a/earlier", "triton/a/just-now")


def node_run(folder: Path, name: str) -> NodeRun:
    """Return the run of a node that keeps caches; all nodes share the volume."""
    return node_run_with_caches(folder / name, caches_of(folder, name))


def caches_of(folder: Path, name: str, signer: str = "u0") -> CompileCaches:
    """Return the caches of a node."""
    return CompileCaches(str(folder / "volume"), str(folder / name / "own"), KIND, signer)


async def seed(run: NodeRun) -> None:
    """Run the prepare step."""
    assert await LocalWork(run, Placeholders).prepare(CACHES, Want(), unheard) == ""


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a folder for quiet at once."""
    monkeypatch.setattr(times, "CACHES_QUIET", 0.0)


def archives(folder: Path) -> list[Path]:
    """Return the archives on the volume."""
    return [*(folder / "volume").glob("*.tar.gz")]


@pytest.mark.usefixtures("quiet")
async def test_written_back_beside_the_job(tmp_path: Path) -> None:
    """Once something was compiled; the next node is seeded by it, and says so."""
    first = node_run(tmp_path, "first")
    second = node_run(tmp_path, "second")
    await first.caches.look()
    assert first.caches.to_status() == ("seeding", "")
    await seed(first)
    assert first.caches.state == "cold"
    await first.caches.look()
    assert archives(tmp_path) == []

    compile_here(caches_of(tmp_path, "first"), "triton/a/x")
    await first.caches.look()
    assert len(archives(tmp_path)) == 1

    await seed(second)
    assert second.caches.state == "seeded"
    await second.caches.look()
    assert not second.folder.file(CACHES_LOG).exists()
    assert second.stats.snapshot().caches == "seeded"
    shown = second.caches.to_status()
    assert shown is not None
    assert shown[0] == "seeded"


QUIET = CacheLook(3, 300, 100.0)
LATER = 100.0 + times.CACHES_QUIET


@pytest.mark.parametrize(
    ("look", "now", "next_save", "expected"),
    [
        (QUIET, LATER, LATER, True),
        (QUIET, LATER - 1, 0.0, False),  # a new file has just come
        (QUIET, LATER, LATER + 1, False),  # it was written lately
        (CacheLook(2, 200, 100.0), LATER, 0.0, False),  # as the archive has it
        (CacheLook(), LATER, 0.0, False),
    ],
)
def test_when_to_write(look: CacheLook, now: float, next_save: float, *, expected: bool) -> None:
    """Once something is new, no file has come for a while, and the last write is long ago."""
    assert is_due(look, CacheLook(2, 200, 50.0), now, next_save) == expected


@pytest.mark.parametrize(
    ("outcome", "written"),
    [
        (DONE, [*PATHS]),
        (FAILED, ["triton/a/earlier"]),
        (LOST, ["triton/a/earlier"]),
        (STOPPED, []),
    ],
    ids=lambda value: value.kind.value if isinstance(value, ends.Outcome) else "",
)
async def test_written_back_at_the_end(
    tmp_path: Path, outcome: ends.Outcome, written: list[str]
) -> None:
    """After a failure without the newest files, which a killed compiler may have left incomplete.

    A stop has no time for it.
    """
    run, own = node_run(tmp_path, "node"), caches_of(tmp_path, "node")
    await seed(run)
    compile_here(own, *PATHS)
    make_older(own, PATHS[0], times.CACHES_SETTLED + 5)
    await run.caches.look()  # not quiet yet
    assert archives(tmp_path) == []
    await run.caches.save_at_end(outcome)

    fresh = tmp_path / "fresh"
    seed_place(CachePlace(own.volume, str(fresh), own.archives, KIND.digest))
    assert [path for path in PATHS if (fresh / path).exists()] == written


async def test_the_end_waits_no_longer_than_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that does not end is left to the stop of all that runs here."""
    run = node_run(tmp_path, "node")
    monkeypatch.setattr("agent.run.cache_keeper.CACHES_SAVE_AT_END", 0.5)
    await seed(run)
    compile_here(caches_of(tmp_path, "node"), "triton/a/x")
    slow = lambda _self, *_words: ["sleep", "1000"]  # noqa: E731 - a stand-in
    monkeypatch.setattr(CompileCaches, "argv", slow)
    with anyio.fail_after(20):
        await run.caches.save_at_end(DONE)
    await run.stop_descendants(5.0)


@pytest.mark.parametrize(
    ("outcome", "compiles"),
    [(DONE, False), (FAILED, False), (STOPPED, False), (DONE, True)],
    ids=lambda value: value.kind.value if isinstance(value, ends.Outcome) else "",
)
async def test_a_cold_run_that_compiles_nothing_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: ends.Outcome, *, compiles: bool
) -> None:
    """Else the next cold start of the same job has no reason; after a stop nothing is known."""
    said: list[str] = []
    monkeypatch.setattr(cache_keeper, "say", lambda sentence, *_: said.append(sentence))
    run = node_run(tmp_path, "node")
    await seed(run)
    if compiles:
        compile_here(caches_of(tmp_path, "node"), *PATHS)
    await run.caches.save_at_end(outcome)
    is_said = "compile caches: nothing was compiled, so that nothing is kept" in said
    assert is_said == (not compiles and outcome is not STOPPED)
    assert run.plan.logs()["compile-caches"] == CACHES_LOG


async def test_without_caches_nothing_is_looked_at(tmp_path: Path) -> None:
    """A run without AGENT_CACHE_DIR starts no program."""
    run = node_run_with(tmp_path, ())
    await run.watch_caches()
    await run.caches.look()
    await run.caches.save_at_end(DONE)
    assert not run.folder.file(CACHES_LOG).exists()


async def test_a_token_signs(tmp_path: Path) -> None:
    """The step and the program get the key that is made of it, by a variable."""
    token = "token-0123456789abcdef"  # noqa: S105 - no secret of anybody's
    signer = signer_of(seal_of(token), 0)
    caches = caches_of(tmp_path, "node", signer)
    run = node_run_with_caches(tmp_path / "node", caches, RAY_AUTH_TOKEN=token)
    await seed(run)
    compile_here(caches, "triton/a/x")
    await run.caches.save_at_end(DONE)
    (archive,) = archives(tmp_path)
    assert signer in archive.name
    assert token.encode() not in archive.read_bytes()
    place = CachePlace(caches.volume, str(tmp_path / "fresh/x"), caches.archives, KIND.digest)
    assert seed_place(replace(place, seal=seal_of(f"{token}x"))).state == "cold"
    assert seed_place(replace(place, seal=seal_of(token))).state == "seeded"
