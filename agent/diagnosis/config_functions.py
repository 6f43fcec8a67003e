"""Rows about values that a configuration refuses: the form of the error shows which ones."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from agent.diagnosis.cause import Cause

if TYPE_CHECKING:
    from agent.diagnosis.errors.parsed_error import ParsedError

_LONGEST = 70  # characters of a message that a sentence repeats
_SETTINGS = r"(?:Config|Configuration|Args|Arguments|Settings|Options|Params)"
_TITLE = re.compile(rf"\d{{1,4}} validation errors? for (?P<owner>\w{{0,60}}{_SETTINGS})\b")
_OF_REQUESTS = re.compile(r"Request|Response|Completion|Message|Sampling|Chat")
"""Titles of what is sent while the job runs: no setting of it."""
_FIELD = re.compile(r"[A-Za-z_][\w.-]{0,80}$")
_TYPED = re.compile(r"\s*(?P<message>.{1,300}?) \[type=(?P<type>\w{1,60})")
_CHECKS = re.compile(
    r"__post_init__|_{0,2}(?:validate|verify|check)_?\w{0,40}(?:config|args|arguments|options)\w{0,20}"
    r"|validate(?:_args)?|_verify_args|_validate_args|_batch_assertion|_do_sanity_check"
)
_FILES = re.compile(r"(?:config|arguments|args|options)\w{0,20}\.py$|/(?:config|configs|training)/")
_SHORTEST = 12  # characters of a message that says something
_FRAMEWORKS = re.compile(
    r"/(?P<name>verl|openrlhf|trl|nemo_rl|slime|slime_plugins|skyrl_train|skyrl|areal|verifiers"
    r"|prime_rl|swift|vllm|sglang|megatron|deepspeed|accelerate|torchtitan|transformers)/"
)
_WORKS = re.compile(
    r"forward\w{0,30}|backward\w{0,30}|train|train_\w{1,30}|training_step|fit|_?step|generate\w{0,30}"
    r"|compute_\w{1,40}|update_\w{1,40}|rollout\w{0,20}|load_\w{1,40}|save_\w{1,40}|from_pretrained"
    r"|__call__|__getitem__|_call_impl|execute_\w{1,30}|sample\w{0,20}|apply_chat_template|_tokenize"
    r"|collate\w{0,20}|map|init_process_group|wake_up|sleep"
)
"""Functions of a job that has started: what they refuse is no setting, but data or state."""
_SETTING = re.compile(
    r"(?<![\w./-])(?:--[a-z][\w-]{2,60}|[\x60'\"]?[a-z]\w{0,60}(?:[._][a-z0-9]\w{0,60}){1,6})"
)
_OF_DATA = re.compile(
    r"input|mask|position|label|logit|token_id|prob|embed|hidden|pixel|image|past_|grid|tensor"
    r"|\.weight\b|\.bias\b|lora_[AB]|\.\d+\.|state_dict|shape|dtype|device(?!_map)|cuda|torch\.|https?"
)
_DEMANDS = re.compile(
    r"\b(?:must|should|needs? to|ha(?:s|ve) to|only supports?|not supported|unsupported|required?"
    r"|requires|cannot|can't|can not|not allowed|mutually exclusive|incompatible|not compatible"
    r"|greater|larger|smaller|less than|at least|at most|deprecated)\b"
)
_UNSUPPORTED = re.compile(
    r"\b(?:only supports?|(?:does|do) not (?:yet )?support"
    r"|(?:is|are) not (?:yet |currently )?supported"
    r"|not (?:yet )?(?:supported|implemented) (?:yet|with|for|in)"
    r"|(?:is|are) (?:in|not )compatible with"
    r"|mutually exclusive|cannot be (?:used|combined|enabled) (?:with|together))\b"
)
"""A refusal that is one without the name of a setting."""
_OTHER_CAUSES = re.compile(
    r"(?i)install|version|transformers|driver|\bcuda\b|(?<!per )\bgpus?\b|capability|\bhub\b"
    r"|connect|not found|no such file|does not exist|architecture|recogni[sz]e|divisib|memory"
    r"|platform"
    r"|line \d+ column|\bjson\b|decode"
)
"""Words of messages about the machine or about packages, which a check only passes on."""

_LONGEST_REASON = 110  # characters of a bundled program's own sentence
_OF_TRAINER = (
    ("no file ", "Correct AGENT_TRAIN_DATA or AGENT_EVAL_DATA: the file must be on every node"),
    (" has no rows", "Fill it, or name another file in AGENT_TRAIN_DATA or AGENT_EVAL_DATA"),
    (" has no column ", "Name them in AGENT_JOB_ARGS (--prompt-key, --label-key)"),
    ("processes see ", "Set AGENT_CHECKPOINTS to a folder on a disk that all nodes share"),
    ("pip install peft", "Install it in the image, or by AGENT_PREPARE_EACH"),
)
"""Words of TrainerSetupError in bundled/trl_grpo.py, and the settings that they are about."""


def refused_by_trainer(error: ParsedError) -> Cause | None:
    """The bundled trainer says itself what is wrong: the remedy is the setting that it is about."""
    message = error.message.partition("\n")[0].strip()
    remedies = (remedy for words, remedy in _OF_TRAINER if words in message)
    reason = _short(message.partition(": name them by ")[0], _LONGEST_REASON)
    return Cause("trainer's setup", reason, next(remedies, "Correct it in AGENT_JOB_ARGS"))


def refused_field(error: ParsedError) -> Cause | None:
    """Pydantic refuses a field of a configuration: its title, the field and why stand in lines."""
    if error.name != "ValidationError":
        return None
    title = _TITLE.match(error.message)
    lines = error.message.split("\n")[1:4]
    if title is None or not lines:
        return None
    field = lines[0].strip() if _FIELD.match(lines[0]) else ""
    typed = next((match for line in lines if (match := _TYPED.match(line))), None)
    if typed is None or _OTHER_CAUSES.search(typed["message"]):
        return None
    owner = title["owner"]
    if _OF_REQUESTS.search(owner):
        return None
    if typed["type"] in {"extra_forbidden", "unexpected_keyword_argument"}:
        return _refused(f"{owner} has no key {field} in this version")
    if typed["type"] == "missing":
        return _refused(f"{owner} lacks its key {field}")
    message = typed["message"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return _refused(f"{owner} refuses {field or 'a value'}: {_short(message)}")


def refused_by_a_check(error: ParsedError) -> Cause | None:
    """A check of a framework's configuration refuses a value: the frame shows that it is one."""
    if error.name not in {"ValueError", "AssertionError"} or not error.frames:
        return None
    frame = error.frames[-1]
    function = frame.function.rpartition(".")[2]
    if _CHECKS.fullmatch(function) is None:
        return None
    message = error.message.partition("\n")[0].strip()
    if not message and frame.code.startswith("assert "):
        message = frame.code.removeprefix("assert ").rstrip(" ,(")
    is_of_settings = _FILES.search(frame.file) is not None or "config" in function
    if len(message) < _SHORTEST or not is_of_settings or _OTHER_CAUSES.search(message):
        return None
    return _refused(f"the configuration does not pass {frame.function}: {_short(message)}")


def refused_setting(error: ParsedError) -> Cause | None:
    """A framework refuses a setting while it starts: its message names one, and what it must be."""
    if not error.frames:
        return None
    frame = error.frames[-1]
    message = error.message.partition("\n")[0].strip()
    if _FRAMEWORKS.search(frame.file) is None or _OTHER_CAUSES.search(message):
        return None
    if any(_WORKS.fullmatch(one.function.rpartition(".")[2]) for one in error.frames):
        return None
    named = _SETTING.search(message)
    if named is not None and not _OF_DATA.search(named[0]) and _DEMANDS.search(message):
        return _refused(f"{_framework(frame.file)} refuses a setting: {_short(message)}")
    if _UNSUPPORTED.search(message) is None or _OF_DATA.search(message):
        return None
    framework = _framework(frame.file)
    return Cause(
        "configuration refused",
        f"{framework} refuses what it is asked for: {_short(message)}",
        f"Change the setting that asks for it, or take a version of {framework} that supports it",
    )


def _framework(file: str) -> str:
    """Return the framework that a file belongs to."""
    return framework_of(file) or file


def framework_of(file: str) -> str:
    """Return the framework that a file belongs to, wherever it lies; '' for other files."""
    found = _FRAMEWORKS.search(file)
    return found["name"] if found else ""


def _refused(sentence: str) -> Cause:
    return Cause(
        "configuration refused",
        sentence,
        "Correct it in the job's configuration or command line, or in the model's own files",
    )


def _short(message: str, most: int = _LONGEST) -> str:
    text = message.rstrip(". ")
    return text if len(text) <= most else f"{text[:most].rpartition(' ')[0]} …"
