"""Settings: every variable of the contract, each with its good and its bad values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.base.errors import Problem, SettingsError
from agent.base.text import NO_TERMINAL
from agent.settings import load
from agent.settings.load import env_lines, env_rows
from agent.settings.model import FIELD_OF, VARIABLES
from agent.settings.values import duration
from support.worlds import SECRET, settings_of


def problems_of(environ: dict[str, str], command: list[str] | None = None) -> tuple[Problem, ...]:
    """Return the problems of an environment that must be refused."""
    with pytest.raises(SettingsError) as caught:
        load(environ, command)
    assert caught.value.end.exit_code == 78
    return caught.value.problems


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("RAY_WORKER", "1", True),
        ("RAY_WORKER", "true", True),
        ("RAY_WORKER", "0", False),
        ("RAY_WORKER", "False", False),
        ("EXPECTED_WORKERS", "0", 0),
        ("EXPECTED_WORKERS", " 3 ", 3),
        ("DEBUG_RAY", "1", "1"),
        ("DEBUG_RAY", "post-mortem", "post-mortem"),
        ("AGENT_JOB", "none", "none"),
        ("AGENT_JOB_ARGS", "--steps 3 'a b' $HOME", ("--steps", "3", "a b", "$HOME")),
        ("AGENT_CHECKPOINTS", "/workspace/ckpt", "/workspace/ckpt"),
        ("AGENT_CACHE_DIR", "/workspace/caches", "/workspace/caches"),
        ("AGENT_CACHE_DIR", " Off ", "off"),
        ("AGENT_JOB_ARGS", "", ()),
        ("AGENT_REWARD", "https://rewards.example/score", "https://rewards.example/score"),
        ("AGENT_REWARD_PORT", "5001", 5001),
        ("AGENT_REWARD_PATH", "/score", "/score"),
        ("AGENT_HEAD", "10.0.0.1", "10.0.0.1"),
        ("AGENT_HEAD", "head.example.", "head.example"),
        ("AGENT_HEAD", "fd00::0:1", "fd00::1"),
        ("AGENT_NODE_IP", "10.0.0.5", "10.0.0.5"),
        ("AGENT_RESOURCES", '{"h100": 8}', {"h100": 8.0}),
        ("AGENT_NUM_GPUS", "0", 0),
        ("AGENT_RAY_PORT", "7000", 7000),
        ("AGENT_RAY_PORT", "tcp://10.0.0.1:6379", None),
        ("AGENT_DASHBOARD_PORT", "tcp://10.0.0.1:8265", None),
        ("AGENT_PORT", "tcp://10.0.0.1:80", None),
        ("AGENT_DASHBOARD_HOST", "0.0.0.0", "0.0.0.0"),
        ("AGENT_WAIT_HEAD", "90s", 90.0),
        ("AGENT_WAIT_WORKERS", "10m", 600.0),
        ("AGENT_WAIT_REWARD", "1h30m", 5400.0),
        ("AGENT_NODE_GRACE", "45", 45.0),
        ("AGENT_STOP_GRACE", "1.5s", 1.5),
        ("AGENT_STALL", " Auto", "auto"),
        ("AGENT_STALL", "20m", 1200.0),
        ("AGENT_STALL", "0", 0.0),
        ("AGENT_LOG_MODE", "group", "group"),
        ("AGENT_ALLOW_INSECURE", "1", True),
        ("AGENT_PRICE_PER_HOUR", " 2.79 ", 2.79),
        ("AGENT_RERUN", "1", True),
        ("AGENT_MAX_HOURS", "1.5", 1.5),
        ("AGENT_RUNPOD_API", "https://api.example:8443", "https://api.example:8443"),
        ("AGENT_RUNPOD_API", "http://127.0.0.1:9999", "http://127.0.0.1:9999"),
        ("RUNPOD_API_KEY", "", None),
    ],
)
def test_a_good_value_is_read(name: str, text: str, value: object) -> None:
    """A valid value is converted to its type."""
    assert getattr(settings_of({name: text}), FIELD_OF[name]) == value


BAD = {
    "RAY_WORKER": ["yes", "", "2", "worker"],
    "HEAD_POD_ID": ["abc.runpod.internal", "-a", "", "a b"],
    "EXPECTED_WORKERS": ["-1", "1.5", "99999", "two", "", "１２"],  # noqa: RUF001 - no ASCII digits
    "DEBUG_RAY": ["2", "legacy", ""],
    "RAY_AUTH_TOKEN": ["", "  ", "two words", "naïve", "line\nbreak", "nul\0byte"],
    "AGENT_REWARD_TOKEN": ["", "  ", "two words", "naïve", "nul\0byte"],
    "AGENT_JUDGE_KEY": ["", "two words", "naïve"],
    "AGENT_JUDGE_URL": ["", "judge", "ftp://judge/", "https://me:key@judge/", "https://j/?key=1"],
    "AGENT_JUDGE_MODEL": [""],
    "AGENT_JOB": ["", "rehersal", "python train.py", "no\udcfftext"],
    "AGENT_JOB_ARGS": ["'open"],
    "AGENT_JOB_RETRIES": ["many", "-1", ""],
    "AGENT_LAUNCHER": ["mpirun", ""],
    "AGENT_CHECKPOINTS": ["ckpt", "./ckpt", ""],
    "AGENT_TENSOR_PARALLEL": ["0", "two", "1.5"],
    "AGENT_PREFLIGHT": ["gloo", ""],
    "AGENT_STALL": ["soon", "-1", "automatic", ""],
    "AGENT_ON_STALL": ["restart", ""],
    "AGENT_FIRST_STEP": ["soon", "0", ""],
    "AGENT_NOTICE_SIGNAL": ["soon", "", "SIGKILL", "10"],
    "AGENT_HEAD_GRACE": ["0", "soon"],
    "AGENT_RUNTIME_ENV": [""],
    "AGENT_WORKING_DIR": [""],
    "AGENT_REWARD": ["", "http://", "https://host:99999/x", "http://host/a b", "HTTP://:80/"],
    "AGENT_REWARD_PORT": ["80", "70000", "http", ""],
    "AGENT_REWARD_PATH": ["get_reward", "", "/a b", "/a?b"],
    "AGENT_SERVICES": [""],
    "AGENT_PREPARE": [" "],
    "AGENT_PREPARE_EACH": [""],
    "AGENT_HEAD": ["http://head", "10.0.0", "head:6379", "-head", "", "a" * 64],
    "AGENT_NODE_IP": ["0.0.0.0", "::", "node-a", ""],
    "AGENT_RESOURCES": [
        *("[]", "8", "{", '{"GPU": 1}', '{"a": -1}', '{"a": true}', '{"a": NaN}'),
        *('{"": 1}', '{"a\\u0000": 1}', '{"\\ud800": 1}'),
    ],
    "AGENT_NUM_GPUS": ["-1", "all", ""],
    "AGENT_NUM_CPUS": ["0", "1.5", ""],
    "AGENT_RAY_PORT": ["80", "65536", "0", ""],
    "AGENT_DASHBOARD_PORT": ["80", "eight", ""],
    "AGENT_PORT": ["1023", "-8266", "", "９０００"],  # noqa: RUF001 - no ASCII digits
    "AGENT_DASHBOARD_HOST": ["http://0.0.0.0", "0.0.0.0:8265", ""],
    "AGENT_WAIT_HEAD": ["soon", "0", "-1s", "31d", "721h", "s", "10 m", ""],
    "AGENT_WAIT_WORKERS": ["ten", ""],
    "AGENT_WAIT_REWARD": ["1e3", ""],
    "AGENT_WAIT_PREPARE": ["inf", ""],
    "AGENT_NODE_GRACE": ["nan", "0s"],
    "AGENT_STOP_GRACE": ["1d", ""],
    "AGENT_PARTIAL": ["maybe", ""],
    "AGENT_MIN_WORKERS": ["-1", "x"],
    "AGENT_LOG_DIR": ["", "  "],
    "AGENT_LOG": ["xml", ""],
    "AGENT_LOG_MODE": ["0700", ""],
    "AGENT_ON_DONE": ["sleep", ""],
    "AGENT_ALLOW_INSECURE": ["yes", ""],
    "AGENT_RERUN": ["yes", ""],
    "AGENT_NOTIFY": [
        *("hooks.example.org/x", "ftp://a.example/x", "https://", "http://h:99999/", ""),
        *("https://a.example/x https:/b", "http://h:0/x", "https://[::1/x", "https://a/\u200b"),
    ],
    "AGENT_MAX_COST": ["0", "-1", "$5", "inf", ""],
    "AGENT_MAX_HOURS": ["0", "-1", "soon", "8761", "nan", ""],
    "AGENT_PRICE_PER_HOUR": ["0", "$2.79", "inf", ""],
    "AGENT_RUNPOD_API": ["http://api.runpod.io", "ftp://x", "https://", "https://u:p@x", "api", ""],
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_value_is_refused_by_its_name(name: str) -> None:
    """An invalid value is one problem with the variable's name and the expected form."""
    for text in BAD[name]:
        problems = problems_of({name: text})
        assert [problem.variable for problem in problems] == [name], repr(text)
        assert problems[0].expected, repr(text)


def test_all_problems_come_together() -> None:
    """Every invalid value, a typo and two contradictions are reported together."""
    environ = {name: texts[0] for name, texts in BAD.items() if name != "AGENT_MIN_WORKERS"}
    environ |= {"AGENT_JOBS": "rehearsal", "AGENT_MIN_WORKERS": "2"}
    environ |= {"AGENT_PARTIAL": "fail", "WANDB_API_KEY": "x", "WANDB_API_KEY_FILE": "/x"}
    named = {problem.variable for problem in problems_of(environ)}
    expected = set(BAD) - {"AGENT_PARTIAL"} | {"AGENT_JOBS", "WANDB_API_KEY + WANDB_API_KEY_FILE"}
    assert named == expected


def test_one_bad_value_is_reported_once() -> None:
    """An invalid value is not reported again as part of a contradiction."""
    (problem,) = problems_of({"AGENT_PARTIAL": "proceed", "AGENT_MIN_WORKERS": "x"})
    assert problem.variable == "AGENT_MIN_WORKERS"


@given(st.integers(0, 99), st.integers(0, 999), st.integers(0, 9999))
def test_durations_add_up(hours: int, minutes: int, seconds: int) -> None:
    """Hours, minutes and seconds add up, whichever of them are given."""
    parts = {"h": hours, "m": minutes, "s": seconds}
    text = "".join(f"{number}{unit}" for unit, number in parts.items() if number)
    total = hours * 3600 + minutes * 60 + seconds
    if total:
        assert duration(text) == total
    if seconds:
        assert duration(text.removesuffix("s")) == total


@given(st.one_of(st.text(), st.text("0123456789.hms ", max_size=400)))
def test_a_duration_is_bounded_or_refused(text: str) -> None:
    """Whatever is written, it is a time above 0 and of at most 30 days, or a ValueError."""
    try:
        seconds = duration(text)
    except ValueError:
        return
    assert 0 < seconds <= 30 * 86_400


def test_what_is_set_comes_first_and_alone() -> None:
    """One line each, with its origin, a secret masked; the others are counted, or listed below."""
    environ = {"AGENT_LOG": "json", "AGENT_PORT": "9300", "RAY_AUTH_TOKEN": SECRET}
    rows = [*env_rows(load(environ), environ)]
    assert sorted(row.name for row in rows) == sorted(VARIABLES)
    lines = NO_TERMINAL.render(env_lines(rows, has_all=False), str).splitlines()
    assert lines[:3] == [
        "AGENT_PORT=9300  [environment]",
        "AGENT_LOG=json  [environment]",
        "RAY_AUTH_TOKEN=********  [environment]",
    ]
    assert lines[3:] == [
        f"{len(rows) - 3} variables have their defaults: --all lists them, and what each is for"
    ]
    table = NO_TERMINAL.render(env_lines(rows, has_all=True), str)
    assert table.splitlines()[:3] == lines[:3]
    assert SECRET not in table
    assert "AGENT_JOB  recipe name, or `none`: boot and stay (default: rehearsal)" in table
    assert all(f"\n{name}" in f"\n{table}" for name in FIELD_OF)
