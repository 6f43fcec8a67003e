"""AGENT_RAY_ARGS: accepted flags, flags that the agent sets, and the temp dir."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.base.errors import Problem, SettingsError
from agent.node.facts import MIB
from agent.run import plan_input
from agent.run.plan_input import temp_root
from agent.settings import load
from agent.settings.rules import SET_BY_AGENT, flags_for_node, flags_of
from support.worlds import MACHINE, our_ray, plan_of, settings_of

if TYPE_CHECKING:
    from pathlib import Path

WORKER = {"AGENT_HEAD": "10.0.0.1", "RAY_WORKER": "1"}


def problem_of(given: str) -> str:
    """Return the problems of flags that are refused for every Ray."""
    with pytest.raises(SettingsError) as caught:
        load({"AGENT_RAY_ARGS": given})
    return "\n".join(problem.sentence() for problem in caught.value.problems)


def argv(given: str, environ: dict[str, str] | None = None) -> tuple[str, ...]:
    """Return the `ray start` of a node with these flags."""
    plan = plan_of({**(environ or {}), "AGENT_RAY_ARGS": given})
    return our_ray(plan).command(is_head=plan.topology.is_head)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("--object-store-memory=9 --labels a=b", ["--object-store-memory=9", "--labels=a=b"]),
        ("--object-spilling-directory /nvme -v", ["--object-spilling-directory=/nvme", "-v"]),
        ("--no-monitor --plasma-directory=/nvme", ["--no-monitor", "--plasma-directory=/nvme"]),
        ("""--system-config '{"a": 1}'""", ['--system-config={"a": 1}']),
    ],
)
def test_what_passes(given: str, words: list[str]) -> None:
    """Both forms of a flag with a value, and flags without one, reach `ray start`."""
    assert list(argv(given)[-len(words) :]) == words


def test_a_worker_is_given_no_flag_of_the_heads() -> None:
    """Ray refuses --system-config on a worker; one environment serves every pod."""
    assert not any("system-config" in word for word in argv("--system-config={}", WORKER))
    assert "--labels=a=b" in argv("--system-config={} --labels a=b", WORKER)


@pytest.mark.parametrize("flag", sorted(SET_BY_AGENT))
def test_flags_that_the_agent_sets_are_refused(flag: str) -> None:
    """Each flag that the agent sets is refused, in each form."""
    for words in (flag, f"{flag}=7", f"{flag} 7"):
        sentence = problem_of(words)
        assert sentence.startswith(f"AGENT_RAY_ARGS: got {flag}; expected other flags"), words


def test_every_flag_that_is_planned_is_owned_or_gives_way() -> None:
    """No flag of the plan's own can be given a second time."""
    everything = {"AGENT_NUM_GPUS": "1", "AGENT_RESOURCES": '{"a": 1}', "DEBUG_RAY": "1"}
    for environ in ({}, WORKER):
        small = replace(MACHINE, shm=64 * MIB, shm_free=64 * MIB)
        plan = plan_of({**environ, **everything}, small)
        words = our_ray(plan).command(is_head=plan.topology.is_head)
        names = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert names <= {*SET_BY_AGENT, "--temp-dir", "--object-store-memory"}


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("stray", "'stray' without a flag before it"),
        ("--labels a=b stray", "'stray' without a flag before it"),
        ("--temp-dir", "--temp-dir without a folder"),
        ("--temp-dir=nvme", "--temp-dir=nvme; expected an absolute path"),
    ],
)
def test_what_is_no_flag(given: str, complaint: str) -> None:
    """Stray words and incomplete flags are named."""
    assert complaint in problem_of(given)


def test_the_users_memory_wins() -> None:
    """A user's size replaces ours, and a user's directory the limit by /dev/shm."""
    small = replace(MACHINE, shm=64 * MIB, shm_free=64 * MIB)
    sizes = {
        given: [w for w in our_ray(plan).command(is_head=True) if w.startswith("--object-store")]
        for given in ("--object-store-memory=9", "--plasma-directory=/nvme", "--labels=a=b")
        for plan in [plan_of({"AGENT_RAY_ARGS": given}, small)]
    }
    assert [len(found) for found in sizes.values()] == [1, 0, 1]
    assert sizes["--object-store-memory=9"] == ["--object-store-memory=9"]


def test_sessions_follow_the_temp_dir(tmp_path: Path) -> None:
    """They are in our folder below it, on workers too, and all readers use that folder."""
    given = {"AGENT_RAY_ARGS": "--temp-dir=/"}
    plan = plan_input.plan_from_environment(given, None)
    assert our_ray(plan).session == plan.launch.session
    assert plan.facts.temp == "/"
    assert any(finding.check == "/" for finding in plan.findings)
    elsewhere = replace(MACHINE, temp="/mnt/nvme")
    for environ in (given, {**given, **WORKER}):
        plan = plan_of(environ, elsewhere)
        session = "/mnt/nvme/pod-agent/ray"
        words = our_ray(plan).command(is_head=plan.topology.is_head)
        assert our_ray(plan).session == session
        assert [w for w in words if "temp-dir" in w] == [f"--temp-dir={session}"]
    assert not any("temp-dir" in w for w in argv("", WORKER))
    problems: list[Problem] = []
    asked = settings_of({"AGENT_RAY_ARGS": f"--temp-dir {tmp_path}"})
    assert temp_root(asked, problems) == str(tmp_path)
    assert problems == []


@pytest.mark.parametrize("name", ["missing", "file", "a b"])
def test_a_temp_dir_that_cannot_be(tmp_path: Path, name: str) -> None:
    """A missing one, a file, or one that a shell would split is refused by its name."""
    (tmp_path / "file").touch()
    (tmp_path / "a b").mkdir()
    problems: list[Problem] = []
    temp_root(settings_of({"AGENT_RAY_ARGS": f"'--temp-dir={tmp_path}/{name}'"}), problems)
    assert f"{tmp_path}/{name}" in problems[0].got


def test_a_temp_dir_too_deep() -> None:
    """A socket's path has at most 107 bytes; the error has the excess."""
    with pytest.raises(SettingsError, match="shorter by 4"):
        plan_of({}, replace(MACHINE, temp="/" + 34 * "x", uid=0))
    assert plan_of({}, replace(MACHINE, temp="/" + 30 * "x", uid=0)).launch.session


@given(
    st.lists(
        st.tuples(
            st.from_regex(r"--[a-z][a-z-]{0,9}", fullmatch=True).filter(
                lambda name: name not in {*SET_BY_AGENT, "--temp-dir"}
            ),
            st.one_of(st.none(), st.text("abc=/{}\" '", max_size=9)),
        )
    )
)
def test_flags_reach_ray_unchanged(flags: list[tuple[str, str | None]]) -> None:
    """`--a=b` and `--a` reach Ray unchanged and in order."""
    words = tuple(name if value is None else f"{name}={value}" for name, value in flags)
    assert flags_of(words) == flags
    assert tuple(flags_for_node(words, is_head=True)) == words
