"""Settings together: names, secrets and contradictions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import asdict

from agent.base.errors import SettingsError
from agent.run.plan_input import plan_from_environment
from agent.settings import load
from agent.settings.jobs import on_stall
from agent.settings.model import FIELD_OF, SECRET_FILE_VARIABLES, SET_BY_PLATFORM
from agent.settings.rules import reward_choice
from agent.settings.values import Secret
from support.worlds import SECRET, settings_of

if TYPE_CHECKING:
    from pathlib import Path


def message_of(environ: dict[str, str], command: list[str] | None = None) -> str:
    """Return the error text of an environment that must be refused."""
    with pytest.raises(SettingsError) as caught:
        load(environ, command)
    problems = [problem.sentence() for problem in caught.value.problems]
    return "\n".join([caught.value.sentence(), repr(caught.value), *problems])


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("AGENT_JOBS", "AGENT_JOB"),
        ("AGENT_WAITHEAD", "AGENT_WAIT_HEAD"),
        ("AGENT__HEAD", "AGENT_HEAD"),
        ("AGENT_REWARDPATHS", "AGENT_REWARD_PATH"),
        ("AGENT_MDOEL", "AGENT_MODEL"),
        ("HAED_POD_ID", "HEAD_POD_ID"),
        ("head_pod_id", "HEAD_POD_ID"),
        ("EXPECTED_WROKERS", "EXPECTED_WORKERS"),
        ("DEBUG_RAYS", "DEBUG_RAY"),
    ],
)
def test_a_near_miss_is_refused(typo: str, meant: str) -> None:
    """A name almost equal to a known one is an error that names the known one."""
    sentence = message_of({typo: "1"})
    assert typo in sentence
    assert f"{meant} (did you mean that?)" in sentence


JUDGE_URL = {"AGENT_JUDGE_URL": "https://judge.example/v1"}


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"AGENT_REWARD": "judge"}, "AGENT_REWARD: got 'judge' without a judge"),
        (JUDGE_URL, "AGENT_JUDGE_URL: got a judge beside AGENT_REWARD=unset"),
        ({**JUDGE_URL, "AGENT_REWARD": "builtin"}, "AGENT_JUDGE_URL: got a judge beside"),
        ({"AGENT_JUDGE_MODEL": "m"}, "AGENT_JUDGE_MODEL: got a judge beside"),
        ({"AGENT_JUDGE_ULR": "x"}, "AGENT_JUDGE_URL (did you mean that?)"),
        ({"AGENT_JUDGE_KEYS": SECRET}, "AGENT_JUDGE_KEY (did you mean that?)"),
    ],
)
def test_a_judge_and_what_asks_it(environ: dict[str, str], words: str) -> None:
    """Neither is of use without the other; a near miss of a name is no default."""
    sentence = message_of(environ)
    assert words in sentence
    assert SECRET not in sentence
    load({"AGENT_REWARD": "judge", **JUDGE_URL, "AGENT_JUDGE_KEY": SECRET}, ["true"])


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("WANDB_APIKEY", "WANDB_API_KEY"),
        ("RAY_AUTH_TOKENS", "RAY_AUTH_TOKEN"),
        ("RAY_AUTHTOKEN_PATH", "RAY_AUTH_TOKEN_PATH"),
        ("agent_job", "AGENT_JOB"),
    ],
)
def test_a_near_miss_of_another_name_is_warned_of(typo: str, meant: str) -> None:
    """A name of W&B or Ray may be another tool's: it is taken for a slip, and only warned of."""
    (slip,) = load({typo: SECRET}).misspelled
    assert slip == f"{typo} is no known variable (did you mean {meant}?)"
    with pytest.raises(SettingsError) as caught:
        load({typo: SECRET, "AGENT_PORT": "x"})
    assert caught.value.hints == (slip,)


@pytest.mark.parametrize(
    "name",
    [
        *("RAY_DEBUG", "RAY_ADDRESS", "RAY_AUTH_MODE", "WANDB_MODE", "WANDB_PROJECT", "RAY_TMPDIR"),
        *("WORKERS", "RAY", "HEAD", "RUNPOD_POD_ID", "RAY_AUTH_TOKEN_FILE"),
        "RAY_DEBUG_POST_MORTEM",
    ],
)
def test_variables_of_other_tools_are_no_misspellings(name: str, tmp_path: Path) -> None:
    """Variables of Ray and W&B are not reported as misspellings."""
    (tmp_path / "secret").write_text(SECRET)
    assert load({name: f"{tmp_path}/secret"}).misspelled == ()
    assert load({"RAY_WORKER": "0", "RAY_WORKERS": "4"}).misspelled == ()


def test_foreign_names_are_named_in_one_note() -> None:
    """Other tools' AGENT_ names do no harm, and are named once, all together."""
    foreign = {"AGENT_TOOLSDIRECTORY": "/t", "AGENT_NAME": "ci", "AGENT_JOBSTATUS": "ok"}
    (note,) = load({**foreign, "PATH": "/bin"}).misspelled
    assert all(name in note for name in foreign)
    assert "PATH" not in note


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("AGENT_TRAIN_DATASET", " (did you mean AGENT_TRAIN_DATA?)"),
        ("AGENT_EXPECTED_WORKERS", " (did you mean EXPECTED_WORKERS?)"),
        ("AGENT_REWARD_URL", " (did you mean AGENT_REWARD?)"),
        ("AGENT_MODEL_PATH", " (did you mean AGENT_MODEL?)"),
        ("AGENT_GPUS", " (did you mean AGENT_NUM_GPUS?)"),
        ("AGENT_CHECKPOINT_DIR", " (did you mean AGENT_CHECKPOINTS?)"),
        ("AGENT_HEAD_POD_ID", " (did you mean HEAD_POD_ID?)"),
        ("AGENT_ID", ""),
    ],
)
def test_an_unknown_name_gets_a_suggestion_by_its_words(name: str, hint: str) -> None:
    """It is no error, as another tool may set it; no suggestion is better than a wrong guess."""
    assert load({name: "x"}).misspelled == (f"unknown and ignored: {name}{hint}",)


@pytest.mark.parametrize("name", ["AGENT_PROGRESS_FILE", "AGENT_ATTEMPT"])
def test_a_name_that_the_agent_sets_for_the_job(name: str) -> None:
    """It is known, and not the user's to set."""
    assert load({name: "/x"}).misspelled == (
        f"{name} is set by the agent in the job's environment; your value is ignored",
    )


@pytest.mark.parametrize("name", ["AGENT_RAY_PORT", "AGENT_DASHBOARD_PORT", "AGENT_PORT"])
def test_a_service_link_is_ignored_with_a_line(name: str) -> None:
    """NAME_PORT=tcp://… of Kubernetes is ignored with a sentence."""
    loaded = load({name: "tcp://10.0.0.1:80"})
    assert any(name in note and "ignored" in note for note in loaded.notes)
    assert loaded.origins[name].is_default


@pytest.mark.parametrize("form", sorted(SECRET_FILE_VARIABLES))
def test_a_secret_from_a_file(form: str, tmp_path: Path) -> None:
    """A secret's file form gives the secret, without the newline that editors add."""
    file = tmp_path / "secret"
    text = f"https://{SECRET}.example/x" if form == "AGENT_NOTIFY_FILE" else SECRET
    file.write_text(f"{text}\n")
    loaded = load({form: str(file)})
    secret = getattr(loaded.settings, FIELD_OF[SECRET_FILE_VARIABLES[form]])
    assert secret is not None
    assert secret.reveal() == text
    assert loaded.origins[SECRET_FILE_VARIABLES[form]].file_variable == form


def test_a_file_precedes_the_key_that_runpod_sets(tmp_path: Path) -> None:
    """RunPod sets a key of its own on every pod: the user's file is no contradiction to it."""
    file = tmp_path / "secret"
    file.write_text(SECRET)
    key = load({"RUNPOD_API_KEY": "of-the-pod", "RUNPOD_API_KEY_FILE": str(file)})
    assert key.settings.runpod_api_key == Secret(SECRET)


@pytest.mark.parametrize(
    "form", sorted(set(SECRET_FILE_VARIABLES) - {f"{name}_FILE" for name in SET_BY_PLATFORM})
)
def test_two_forms_of_one_secret(form: str) -> None:
    """A secret given twice is refused, both names in the message, the value in none."""
    secret = SECRET_FILE_VARIABLES[form]
    sentence = message_of({secret: SECRET, form: "/run/secret"})
    assert secret in sentence
    assert form in sentence
    assert SECRET not in sentence


@pytest.mark.parametrize("form", sorted(SECRET_FILE_VARIABLES))
def test_an_unreadable_or_empty_file(form: str, tmp_path: Path) -> None:
    """A file that is missing, no text or empty is refused by the name of its variable."""
    assert f"{form}: got {tmp_path}/none (No such file" in message_of({form: f"{tmp_path}/none"})
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    assert form in message_of({form: f"{tmp_path}/binary"})
    (tmp_path / "empty").write_text("\n")
    assert f"{form}: got nothing" in message_of({form: f"{tmp_path}/empty"})


def test_a_file_that_an_editor_marked_or_broke(tmp_path: Path) -> None:
    """A byte order mark is not part of the secret; invalid text is refused."""
    file = tmp_path / "secret"
    file.write_text(SECRET, encoding="utf-8-sig")
    secret = load({"WANDB_API_KEY_FILE": str(file)}).settings.wandb_api_key
    assert secret is not None
    assert secret.reveal() == SECRET
    file.write_text(f"{SECRET}\0")
    sentence = message_of({"WANDB_API_KEY_FILE": str(file)})
    assert "WANDB_API_KEY: got a wrong value (not shown, as a secret)" in sentence
    assert SECRET not in sentence


def test_an_empty_key_is_no_key() -> None:
    """An empty WANDB_API_KEY, as templates leave it, means none; an empty token is refused."""
    assert load({"WANDB_API_KEY": ""}).settings.wandb_api_key is None
    assert "RAY_AUTH_TOKEN: got nothing" in message_of({"RAY_AUTH_TOKEN": ""})


@pytest.mark.parametrize("word", ["caf\udce9", "nul\0byte"])
def test_a_command_that_is_not_text(word: str) -> None:
    """A word that no job could be given as it stands is refused."""
    assert "--: got a word that is not text" in message_of({}, ["echo", word])


def test_equal_settings_are_equal() -> None:
    """Two readings of one environment are the same, secrets included."""
    environ = {"RAY_AUTH_TOKEN": SECRET, "AGENT_WAIT_HEAD": "5m"}
    assert load(environ) == load(environ)
    assert load(environ) != load({**environ, "RAY_AUTH_TOKEN": f"{SECRET}2"})


def test_no_secret_is_ever_printed() -> None:
    """Neither loaded values nor problems contain a secret."""
    loaded = load({"RAY_AUTH_TOKEN": SECRET, "WANDB_API_KEY": SECRET})
    assert SECRET not in f"{loaded!r} {loaded.settings} {asdict(loaded.settings)}"
    assert SECRET not in message_of({"RAY_AUTH_TOKEN": f"{SECRET} two", "WANDB_API_KEY": SECRET})
    assert SECRET not in message_of({"RAY_AUTH_TOKEN": SECRET, "AGENT_PORT": "x"})
    assert SECRET not in message_of({"RAY_AUTH_TOKEN": f"{SECRET}\udcff"})


@pytest.mark.parametrize("on_done", ["stop-pod", "terminate-pod"])
def test_a_pod_is_stopped_with_a_key_only(on_done: str) -> None:
    """Without a key the pod could not be stopped: that is found at the start."""
    sentence = message_of({"AGENT_ON_DONE": on_done})
    assert "RUNPOD_API_KEY: got nothing; expected a key of RunPod's API" in sentence
    assert settings_of({"AGENT_ON_DONE": on_done, "RUNPOD_API_KEY": SECRET}).on_done == on_done


TRAIN = ["python", "train.py"]
WITH_URL = [*TRAIN, "--reward={reward_url}"]
DATA = {"AGENT_TRAIN_DATA": "/data/x.parquet"}


@pytest.mark.parametrize(
    ("environ", "command", "words"),
    [
        ({"AGENT_JOB": "rehearsal"}, TRAIN, ["AGENT_JOB", "'rehearsal' beside a command"]),
        ({"AGENT_JOB": "none"}, TRAIN, ["AGENT_JOB", "'none' beside a command"]),
        ({"AGENT_JOB_ARGS": "--x"}, TRAIN, ["AGENT_JOB_ARGS", "recipe"]),
        ({"AGENT_JOB_ARGS": "--x", "AGENT_JOB": "none"}, None, ["AGENT_JOB_ARGS", "recipe"]),
        ({}, [], ["--", "nothing after it"]),
        ({}, [" "], ["--", "nothing after it"]),
        ({"AGENT_REWARD": "off"}, WITH_URL, ["AGENT_REWARD", "{reward_url}"]),
        ({"AGENT_REWARD": "off"}, None, ["AGENT_REWARD", "rehearsal"]),
        ({"AGENT_REWARD": "on"}, WITH_URL, ["got 'on'; expected builtin (did you mean that?)"]),
        ({"AGENT_REWARD": "buildin"}, None, ["expected builtin (did you mean that?)"]),
        ({"AGENT_REWARD": "none"}, TRAIN, ["got 'none'; expected off (did you mean that?)"]),
        ({"AGENT_REWARD": "rm:5000/x"}, TRAIN, ["expected http://rm:5000/x (did you mean that?)"]),
        (
            {"AGENT_JOB": "verl-grpo", "AGENT_MODEL": "https://huggingface.co/a/b", **DATA},
            None,
            ["AGENT_MODEL", "an id on the hub alone, such as Qwen/Qwen2.5-7B"],
        ),
        (
            {"AGENT_JOB": "verl-grpo", "AGENT_MODEL": "Qwen/Qwen2.5 7B", **DATA},
            None,
            ["AGENT_MODEL: got 'Qwen/Qwen2.5 7B'; expected an id on the hub alone"],
        ),
        (
            {"RAY_AUTH_TOKEN": "{{ RUNPOD_SECRET_token }}"},
            TRAIN,
            ["a reference to RUNPOD_SECRET_token, which the platform did not replace"],
        ),
        ({"AGENT_PARTIAL": "proceed"}, None, ["AGENT_MIN_WORKERS: got nothing"]),
        ({"AGENT_MIN_WORKERS": "1"}, None, ["AGENT_MIN_WORKERS", "AGENT_PARTIAL=proceed"]),
        (
            {"AGENT_PARTIAL": "proceed", "AGENT_MIN_WORKERS": "3", "EXPECTED_WORKERS": "2"},
            None,
            ["AGENT_MIN_WORKERS + EXPECTED_WORKERS", "3 of 2"],
        ),
    ],
)
def test_contradictions(
    environ: dict[str, str], command: list[str] | None, words: list[str]
) -> None:
    """A contradiction between settings is refused and names all of them."""
    sentence = message_of(environ, command)
    assert [word for word in words if word not in sentence] == []


@pytest.mark.parametrize(
    ("environ", "command"),
    [
        ({"AGENT_REWARD": "off"}, TRAIN),
        ({"AGENT_REWARD": "off", "AGENT_JOB": "none"}, None),
        ({"AGENT_REWARD": "http://10.0.0.9:8266/score", "AGENT_REWARD_PORT": "8266"}, None),
        ({"AGENT_PARTIAL": "proceed", "AGENT_MIN_WORKERS": "2", "EXPECTED_WORKERS": "2"}, None),
        ({"AGENT_JOB_ARGS": "--steps 3"}, None),
        ({"AGENT_JOB_ARGS": "--steps 3", "AGENT_JOB": "rehearsal"}, None),
        ({"AGENT_RAY_PORT": "7000", "AGENT_DASHBOARD_PORT": "7001", "AGENT_PORT": "7010"}, None),
        ({"AGENT_REWARD_PORT": "6379"}, None),  # which is whose depends on the platform
        ({"AGENT_PORT": "5000", "AGENT_REWARD": "off"}, TRAIN),
    ],
)
def test_what_goes_together(environ: dict[str, str], command: list[str] | None) -> None:
    """Settings that only look like a contradiction are taken."""
    assert load(environ, command).command == (None if command is None else tuple(command))


RECIPE = {"AGENT_MODEL": "org/model", "AGENT_TRAIN_DATA": "org/data"}
PPO = {**RECIPE, "AGENT_JOB": "openrlhf-ppo"}
TRL = {"AGENT_JOB": "trl-grpo"}


@pytest.mark.parametrize("revision", ["main", "v1.0", "refs/pr/1", "0dd" * 13 + "0"])
def test_a_revision_of_a_model(revision: str) -> None:
    """A branch, a tag, a ref and a commit are taken."""
    assert load({**RECIPE, "AGENT_MODEL_REVISION": revision}).settings.model_revision == revision


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, "builtin"),
        ({"AGENT_REWARD_MODEL": "org/rm"}, "off"),
        ({"AGENT_REWARD_MODEL": "org/rm", "AGENT_REWARD": "off"}, "off"),
        ({"AGENT_JOB_ARGS": "--reward_pretrain org/rm"}, "off"),
        ({"AGENT_JOB_ARGS": "--reward.model_name_or_path=org/rm", "AGENT_REWARD": "off"}, "off"),
        ({"AGENT_JOB_ARGS": "--reward.remote_url http://h/s"}, "off"),
        (
            {"AGENT_JOB_ARGS": "--reward.remote_url http://h/s", "AGENT_REWARD": "python3 rm.py"},
            "python3 rm.py",
        ),
        ({"AGENT_JOB_ARGS": "--reward.remote_url {reward_url}"}, "builtin"),
        ({**TRL, "AGENT_JOB_ARGS": "--reward-url=http://h/s"}, "off"),
        ({**TRL, "AGENT_JOB_ARGS": "--reward-url http://h/s", "AGENT_REWARD": "off"}, "off"),
        ({**TRL, "AGENT_JOB_ARGS": "--reward-url={reward_url}"}, "builtin"),
    ],
)
def test_a_named_reward_model_replaces_the_default_server(
    changes: dict[str, str], wanted: str
) -> None:
    """The maths verifier never scores instead of a source of rewards that the user names."""
    assert reward_choice(load({**PPO, **changes}).settings, None) == wanted


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({**PPO, "AGENT_REWARD": "off"}, "a URL or a command; or AGENT_REWARD_MODEL"),
        (
            {**PPO, "AGENT_REWARD": "builtin", "AGENT_REWARD_MODEL": "org/rm"},
            (
                "AGENT_REWARD_MODEL: got a reward model beside AGENT_REWARD=builtin; "
                "expected one of them: AGENT_REWARD=off for the model"
            ),
        ),
        (
            {**PPO, "AGENT_REWARD": "builtin", "AGENT_JOB_ARGS": "--reward_pretrain org/rm"},
            "AGENT_JOB_ARGS: got a reward model beside AGENT_REWARD=builtin",
        ),
        ({**PPO, "AGENT_REWARD_TOKEN": SECRET}, "the reward client of openrlhf sends no token"),
        ({"AGENT_REWARD_TOKEN": "two words"}, "AGENT_REWARD_TOKEN: got a secret that cannot"),
        ({"AGENT_MODEL_REVISION": "v1"}, "got v1 of no model"),
        ({"AGENT_MODEL_REVISION": "v1", "AGENT_MODEL": "/m"}, "AGENT_MODEL_REVISION: got v1 of /m"),
        *(
            ({**RECIPE, "AGENT_MODEL_REVISION": bad}, "a branch, a tag or a commit")
            for bad in ("../x", "/x", "a b", "a//b", "x/", "$(x)")
        ),
        (
            {**RECIPE, "AGENT_JOB": "openrlhf-sft", "AGENT_REWARD_MODEL": "org/rm"},
            "expected unset: openrlhf-sft loads no reward model",
        ),
    ],
)
def test_models_that_do_not_go_together(changes: dict[str, str], named: str) -> None:
    """A reward model beside a server, neither of them, or a revision of no model of the hub."""
    assert named in message_of(changes)


@pytest.mark.parametrize("debugger", ["1", "post-mortem"])
@pytest.mark.parametrize("action", ["retry", "stop"])
def test_no_breakpoint_ends_a_job(debugger: str, action: str) -> None:
    """An action set by hand beside the debugger is refused; without it, nothing is acted on."""
    assert f"AGENT_ON_STALL: got '{action}' beside DEBUG_RAY={debugger}" in message_of(
        {"DEBUG_RAY": debugger, "AGENT_ON_STALL": action}
    )
    for fine in ({"AGENT_ON_STALL": "log"}, {"AGENT_JOB_RETRIES": "3"}):
        load({"DEBUG_RAY": debugger, **fine}, None)


@pytest.mark.parametrize(
    ("environ", "action"),
    [
        ({}, "log"),
        ({"AGENT_JOB_RETRIES": "3"}, "retry"),
        ({"AGENT_JOB_RETRIES": "3", "DEBUG_RAY": "1"}, "log"),
        ({"AGENT_JOB_RETRIES": "3", "AGENT_ON_STALL": "log"}, "log"),
        ({"AGENT_ON_STALL": "stop"}, "stop"),
    ],
)
def test_a_stalled_job_is_retried_where_an_attempt_may_follow(
    environ: dict[str, str], action: str
) -> None:
    """By default; what is set by hand wins."""
    assert on_stall(settings_of(environ)) == action


CONTRADICTION = {"RUNPOD_POD_ID": "poda", "HEAD_POD_ID": "poda", "RAY_WORKER": "1"}


@pytest.mark.parametrize(
    ("wrong", "variable"),
    [
        ({"AGENT_STALL": "often"}, "AGENT_STALL"),
        ({"AGENT_JOB": "no-such-recipe"}, "AGENT_JOB"),
        ({"AGENT_LAUNCHER": "torchrun", "DEBUG_RAY": "1"}, "DEBUG_RAY"),
        ({"AGENT_RAY_PORT": "tcp"}, "AGENT_RAY_PORT"),
        ({"AGENT_MODL": "x"}, "AGENT_MODL"),
        ({"AGENT_SERVICES": "/no/file"}, "AGENT_SERVICES"),
        ({"RAY_AUTH_TOKEN": ""}, "RAY_AUTH_TOKEN"),
        ({"AGENT_PORT": "8265"}, "AGENT_PORT"),
    ],
)
def test_a_contradicted_role_is_reported_with_the_rest(
    wrong: dict[str, str], variable: str
) -> None:
    """All problems at once: the platform's do not wait until the others are gone."""
    with pytest.raises(SettingsError) as caught:
        plan_from_environment({**CONTRADICTION, **wrong}, None)
    names = {name for one in caught.value.problems for name in one.variable.split(" + ")}
    assert {variable, "RAY_WORKER", "HEAD_POD_ID"} <= names


@pytest.mark.parametrize(
    "wrong", [{"RAY_WORKER": "perhaps"}, {"HEAD_POD_ID": "p o d"}, {"EXPECTED_WORKERS": "many"}]
)
def test_what_follows_from_a_wrong_role_is_not_reported(wrong: dict[str, str]) -> None:
    """Nobody knows the role then: a second problem would be a guess."""
    with pytest.raises(SettingsError) as caught:
        plan_from_environment({**CONTRADICTION, "RAY_WORKER": "1", **wrong}, None)
    assert [one.variable for one in caught.value.problems] == [*wrong]


def test_a_command_that_is_no_text_is_refused_by_its_name() -> None:
    """It is not looked for on this machine."""
    with pytest.raises(SettingsError, match="NUL"):
        plan_from_environment({}, ["train\0.py"])


@pytest.mark.parametrize("name", ["AGENT_WAIT_WORKERS", "AGENT_STALL", "AGENT_STOP_GRACE"])
def test_a_duration_without_a_unit_is_noted(name: str) -> None:
    """It is read as seconds, and a line says so; a unit, or 0 for never, needs none."""
    assert load({name: "10"}).notes == (f"{name}=10 is read as 10 seconds (10m: minutes)",)
    assert load({name: "10s"}).notes == ()
    assert load({"AGENT_STALL": "0"}).notes == ()
