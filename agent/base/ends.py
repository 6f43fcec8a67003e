"""Every way in which a run can end on a node: exit code, kind, sentence and remedy, as rows.

Every outcome is made from a row: `NODE_LOST.outcome(loss=...)`. To find out why a run ended with a
code, read the rows of that code, then search for the row's name.
"""

from __future__ import annotations

import signal
from enum import Enum
from functools import partial

from msgspec.structs import replace

from agent.base.value import ExitCode, Value

STARTING = "starting"  # the phase of a run that failed before its first phase
_TEXTS = ("reason", "culprit", "remedy", "before")
_SIGNALS = {number.value: number.name for number in signal.Signals}


class Kind(str, Enum):
    """The kinds of outcomes."""

    DONE = "done"
    JOB_FAILED = "job-failed"
    STOPPED = "stopped"
    REFUSED = "refused"
    UNAVAILABLE = "unavailable"
    LOST = "lost"
    BUG = "bug"


class Outcome(Value):
    """The outcome of a run, as the user reads it and as the head sends it to the workers.

    In a row of this file its texts are templates for `str.format`. A row whose reason may quote a
    log has a `plain` one, too: readers without the token get no text of logs.
    """

    kind: Kind
    exit_code: ExitCode
    reason: str
    phase: str = ""  # in a row '' for the phase in which the node is
    culprit: str = ""
    remedy: str = ""
    is_jobs_verdict: bool = False  # the job itself ended
    attempts_are_used_up: bool = False  # no attempt may follow, or a limit of the run is reached
    is_superseded: bool = False  # a later head continues the run: this is of this node alone
    is_warning: bool = False  # a success that nobody may rely on
    plain: str = ""  # the reason without words of logs; '' in a row if the reason has none
    before: str = ""  # a loss before this end, as the reason has it

    def outcome(self, *, code: int | None = None, **words: object) -> Outcome:
        """Return the outcome of a row; `words` fill the templates, `code` is the job's own."""
        texts = {name: getattr(self, name) for name in _TEXTS} | {
            "plain": self.plain or self.reason
        }
        filled = {name: text.format(**words) for name, text in texts.items()}
        return replace(self, exit_code=self.exit_code if code is None else code, **filled)

    @property
    def holds_pod(self) -> bool:
        """Return whether AGENT_ON_DONE=hold holds the pod: a restart could not do more."""
        return self.is_jobs_verdict or self.attempts_are_used_up

    @property
    def is_failure(self) -> bool:
        """Return whether the run neither succeeded nor was stopped."""
        return self.exit_code != 0 and self.kind is not Kind.STOPPED

    @property
    def headline(self) -> str:
        """Return kind and reason; a warning has its own word."""
        kind = "warning" if self.is_warning else self.kind.value
        return f"{kind}: {self.reason}"

    def sentence(self) -> str:
        """Return the outcome in one line, the last that this node prints."""
        text = f"{self.headline} (exit code {self.exit_code})"
        return f"{text}. {self.remedy}" if self.remedy else text


def shell_code(returncode: int) -> int:
    """Return the exit code as a shell reports it: 128+n for signal n, at most 255."""
    # the kernel keeps 8 bits: 1792 would become 0
    return min(128 - returncode if returncode < 0 else returncode, 255)


def exit_sentence(code: int) -> str:
    """Return a sentence with the exit code of a process."""
    return f"exit code {name_of_code(code)}"


def name_of_code(code: int) -> str:
    """Name an exit code: '7', or '137 (SIGKILL)'."""
    name = _SIGNALS.get(code - 128)
    return str(code) if name is None else f"{code} ({name})"


def _row(  # noqa: PLR0913 - the columns of the table
    kind: Kind,
    exit_code: ExitCode,
    reason: str,
    culprit: str = "",
    remedy: str = "",
    phase: str = "",
    plain: str = "",
    before: str = "",
    **flags: bool,
) -> Outcome:
    return Outcome(
        kind, exit_code, reason, phase, culprit, remedy, plain=plain, before=before, **flags
    )


BY_CALLER = 255  # the exit code of a row whose outcomes get theirs from the job or a signal

_SUBMITTING = "submitting"
_refused = partial(_row, Kind.REFUSED, 78)
_unavailable = partial(_row, Kind.UNAVAILABLE, 69)
_lost = partial(_row, Kind.LOST, 75)

# --- the job's own end: its exit code on every node ---------------------------------------------

_OUTPUT = "Its output is in job.log"

JOB_SUCCEEDED = _row(
    Kind.DONE,
    0,
    "the job succeeded{before}",
    plain="the job succeeded",
    before="{before}",
    is_jobs_verdict=True,
)
_job_failed = partial(_row, Kind.JOB_FAILED, BY_CALLER, is_jobs_verdict=True)
JOB_MADE_FEW_STEPS = _row(
    Kind.DONE,
    0,
    "the job exited with 0 {steps}{before}",
    "job",
    "Check the end of job.log; if the job stops early on purpose, ignore this",
    plain="the job exited with 0 {steps}",
    is_jobs_verdict=True,
    is_warning=True,
)
"""The exit code stays the job's, which somebody may rely on."""
JOB_WAS_FINISHED = _row(
    Kind.DONE,
    0,
    "this training was finished already: {of} of {of} steps are in {checkpoint}{before}",
    remedy="To train on, raise the number of steps in AGENT_JOB_ARGS, or set another folder in "
    "AGENT_CHECKPOINTS",
    plain="this training was finished already: it has made {of} of {of} steps",
    is_jobs_verdict=True,
)
JOB_FAILED = _job_failed(
    "the job failed with exit code {code_name}{place}{message}{before}",
    "job",
    _OUTPUT,
    plain="the job failed with exit code {code_name}{place}",
)
JOB_OUT_OF_MEMORY = _job_failed(
    "the job ran out of memory{details}{before}", "job", _OUTPUT, plain="the job ran out of memory"
)
JOB_STOPPED = _row(
    Kind.STOPPED,
    143,
    "the job was stopped from outside{before}",
    "job",
    plain="the job was stopped from outside",
    is_jobs_verdict=True,
)
IDLE_WORKER = _row(
    Kind.DONE,
    0,
    "nothing to do on this worker: {owner} starts Ray here, and the job ends elsewhere",
    phase=STARTING,
)
"""The container's next command must run, so that the platform can start Ray."""

# --- 143, 130, and 0 with AGENT_JOB=none: asked to stop -----------------------------------------

STOPPED_BY_SIGNAL = _row(Kind.STOPPED, BY_CALLER, "asked to stop by {signal}", "{signal}")
STOPPED_ON_REQUEST = _row(
    Kind.STOPPED, BY_CALLER, "asked to stop by `pod-agent stop` or the page", "{signal}"
)

MAX_HOURS = _row(
    Kind.STOPPED,
    78,
    "the run has used its {hours:g} h (AGENT_MAX_HOURS)",
    "AGENT_MAX_HOURS",
    "Raise AGENT_MAX_HOURS to continue this run, its attempts and checkpoints count on",
    attempts_are_used_up=True,
)

MAX_COST = _row(
    Kind.STOPPED,
    78,
    "the run has used its ${cost:.2f} (AGENT_MAX_COST)",
    "AGENT_MAX_COST",
    "Raise AGENT_MAX_COST to continue this run, its attempts and checkpoints count on",
    attempts_are_used_up=True,
)
LIMITS_OF_RUN = {MAX_HOURS.culprit, MAX_COST.culprit}
"""The variables that stop a run which is not lost."""

# --- 78: settings, machine or job are wrong; fix and run again ----------------------------------

_BY_CULPRIT = "refused: see {culprit}"
REFUSED = _refused("{reason}", "{culprit}", "{remedy}", STARTING, plain=_BY_CULPRIT)
"""Settings, or a preflight check."""
REFUSED_BY_HEAD = _refused(
    "refused by the head: {refusal}", "this node", plain="refused by the head"
)
TOO_FEW_GPUS = _refused(
    "AGENT_SERVICES {key}: {asked}, which the head has made rank {rank}",
    "AGENT_SERVICES",
    "Ask for fewer, or let the service run on a node that has them (`where`)",
)
"""On a worker without a rank of its platform; others find it before the start."""
NODES_DIFFER = _refused("{reason}", "{check}", "{remedy}", plain="the nodes differ: see {check}")
"""In versions, variables or GPUs."""
ALL_REDUCE_FAILED = _refused(
    "{check}: the all-reduce failed: {failure}",
    "{check}",
    "preflight.log in each node's run folder has the output (set NCCL_DEBUG=INFO for more "
    "detail); unset AGENT_PREFLIGHT to start the job without this test",
    plain="{check}: the all-reduce failed",
)
RECIPE_DOES_NOT_FIT = _refused(
    "{job} does not fit what joined ({nodes}): {error}",
    "AGENT_JOB",
    "Change its arguments, or use other nodes",
    _SUBMITTING,
    plain="{job} does not fit what joined ({nodes})",
)
FRAMEWORK_REFUSES = _refused(
    "{framework} refuses {what}: {words}",
    "{culprit}",
    "{remedy}",
    plain="{framework} refuses {what}",
)
"""The installed framework was asked beside the boot, and does not accept the job's arguments."""
REVISION_NOT_FETCHED = _refused(
    "revision {revision} of {model} is not in the cache of the hub on the head",
    "AGENT_MODEL_REVISION",
    "Install huggingface_hub for Ray's Python, which fetches it, with one HF_HOME for all",
    _SUBMITTING,
)
CHECKPOINTS_REFUSED = _refused(
    "checkpoints in {folder}: {why}",
    "AGENT_CHECKPOINTS",
    "Set another folder in AGENT_CHECKPOINTS, or move that one away to start from the beginning",
    _SUBMITTING,
    plain="checkpoints in {folder} are refused",
)
"""They belong to another job, do not fit the nodes that joined, or cannot be written."""
JOB_REFUSED_BY_RAY = _refused(
    "Ray refused the job: {evidence}",
    "AGENT_RUNTIME_ENV",
    "Correct AGENT_RUNTIME_ENV or AGENT_WORKING_DIR",
    plain="Ray refused the job",
)

# --- 69: something that the run needs was never there, or an essential service is lost ----------

UNAVAILABLE = _unavailable(
    "{reason}", "{culprit}", "{remedy}", STARTING, plain="unavailable: see {culprit}"
)
"""On this machine."""
NO_PROCESS = _unavailable(
    "no room for a process: {error}; raise pids.max", plain="no room for a process"
)
"""The parent cannot start the agent. It prints this itself: it imports nothing of the agent."""
STEP_FAILED = _unavailable("{name} failed: {evidence}", "{name}", plain="{name} failed")
NOT_IN_TIME = _unavailable(
    "{what} not ready in time: {evidence}",
    "{what}",
    "{remedy}",
    plain="{what} not ready in time",
)
"""A wait of the boot is over: head, Ray, workers, service or prepare step."""
BOOT_TOO_LONG = _unavailable(
    "the boot took {minutes} min, longer than all its waits together: {what}: {evidence}",
    "{what}",
    plain="the boot took {minutes} min, longer than all its waits together",
)
"""Each wait began again and again, as after a Ray that was lost while it booted."""
RAY_NOT_STARTED = _unavailable("{what}: {evidence}", "ray", plain="{what}")
"""On the head, or lost too often."""
RAY_NOT_JOINED = _unavailable(
    "Ray on this node could not join: {evidence}", "ray", plain="Ray on this node could not join"
)
ADDRESS_UNKNOWN = _unavailable(
    "the job names the address of {services}, on a node that has not reported",
    "AGENT_SERVICES",
    "Wait for that node, without AGENT_PARTIAL=proceed, or let the service run on another",
    _SUBMITTING,
)
JOB_NOT_SUBMITTED = _unavailable(
    "the job could not be submitted: {evidence}", "ray", plain="the job could not be submitted"
)
SERVICE_LOST = _unavailable("{service}: {evidence}", "{name}", "{remedy}", plain="{service}")

# --- 75: lost; another attempt or another run may succeed ---------------------------------------

RAY_LOST_ON_HEAD = _lost(
    "Ray was lost on the head: {evidence}", "ray", plain="Ray was lost on the head"
)
RAY_LOST_ON_WORKER = _lost("Ray was lost: {evidence}", "ray", plain="Ray was lost")
"""On a worker of a plain Ray head, which has no agent that could start another attempt."""
NO_STATUS_FROM_RAY = _lost("Ray returned no status of the job for {seconds} s", "ray")
JOB_NOT_FOUND = _lost(
    "timed out after the agent was killed, waiting for {what}{evidence}",
    "ray",
    plain="timed out after the agent was killed, waiting for {what}",
)
"""The agent that replaces a killed one does not find the running job."""
NODE_LOST = _lost(
    "{loss}, longer than AGENT_NODE_GRACE",
    "node",
    plain="a needed node is lost for longer than AGENT_NODE_GRACE",
)
GROUP_LOST = _lost("{service}: {evidence}", "{name}", "{remedy}", plain="{service}")
"""A group with `lost = "retry"` has too few members left."""
NODE_TAKEN = _lost("the platform takes away {nodes}", "node")
"""Announced by a SIGTERM to the worker; the job was sent AGENT_NOTICE_SIGNAL before its stop."""
SHARE_LOST = _lost("lost a needed node while the job ran: {nodes} (no report of its share)", "node")
"""Without Ray: a node did not report the end of its share."""
_AFTER_STALL = (
    "All stacks are in stacks-{attempt}.log in the head's run folder. Remove the cause and run "
    "again; the job resumes from its newest checkpoint, if it has one"
)
STALLED_SINCE_LOSS = _lost("{what}{suspects}", "node", _AFTER_STALL, plain="{what}")
STALLED = _lost("{what}{suspects}", "job", _AFTER_STALL, plain="{what}")
"""Two examinations had the same suspects, and AGENT_ON_STALL is `retry`."""
STALL_STOPS = _row(
    Kind.LOST,
    75,
    "{what}{suspects}",
    "job",
    _AFTER_STALL,
    plain="{what}",
    attempts_are_used_up=True,
)
"""The same with `stop`: no attempt follows, and a pod that is held by AGENT_ON_DONE is held."""
_AFTER_LOST_REWARD = (
    "Steps without rewards teach nothing, or wrong: look at what failed; the job goes on from its "
    "newest checkpoint once it answers"
)
REWARD_LOST = _lost("{what}", "reward", _AFTER_LOST_REWARD)
"""The reward fell in the step in which a service failed, and AGENT_ON_STALL is `retry`."""
REWARD_LOST_STOPS = _row(
    Kind.LOST, 75, "{what}", "reward", _AFTER_LOST_REWARD, attempts_are_used_up=True
)
"""The same with `stop`."""
FAILED_AFTER_LOSS = _lost(
    "{loss}, and {failure}", "node", plain="the job failed just after the loss of a node"
)
"""Retries are left."""
FAILED_WITHOUT_CODE = _lost(
    "the job failed without an exit code of its own: {evidence}{before}",
    "job",
    plain="the job failed without an exit code of its own",
)
OUT_OF_MEMORY = _row(
    Kind.JOB_FAILED,
    75,
    "the job ran out of memory and is not tried again: {evidence}",
    "job",
    "Give the pods more memory, or the job less to hold: fewer workers, smaller batches",
    plain="the job ran out of memory and is not tried again",
    is_jobs_verdict=True,
)
ALL_REDUCE_ABORTED = _lost("{check}: the all-reduce was aborted after the loss of {nodes}", "node")
NOT_BACK_IN_TIME = _lost(NOT_IN_TIME.reason, "{what}", "{remedy}", plain=NOT_IN_TIME.plain)
"""Something that an earlier attempt had."""
NODES_NO_LONGER_FIT = _lost(
    "{reason}",
    "{culprit}",
    "Run again once the lost nodes are back",
    _SUBMITTING,
    plain=_BY_CULPRIT,
)
"""As `RECIPE_DOES_NOT_FIT` and `CHECKPOINTS_REFUSED`, after an attempt whose nodes fitted."""
RETRIES_EXHAUSTED = _lost(
    "{last}; {count} lost, and AGENT_JOB_RETRIES={retries} allows no other",
    "attempts",
    "Raise AGENT_JOB_RETRIES, or begin anew in another AGENT_LOG_DIR",
    plain="{count} lost, and AGENT_JOB_RETRIES={retries} allows no other",
    attempts_are_used_up=True,
)
"""Found at the start: the attempts of earlier heads count."""
SAME_CAUSE = _lost(
    "the same cause ended two attempts {where}: {cause}",
    "job",
    "Remove the cause; begin anew in another AGENT_LOG_DIR",
    plain="the same cause ended two attempts {where}",
    attempts_are_used_up=True,
)
NO_PROGRESS = _lost(
    "no progress: {count} attempts in a row were lost within {minutes} min each, without a newer "
    "checkpoint, the last: {last}",
    "attempts",
    "Find out what takes the nodes or Ray away; begin anew in another AGENT_LOG_DIR",
    plain="no progress: {count} attempts in a row were lost within {minutes} min each",
    attempts_are_used_up=True,
)
SUPERSEDED = _lost(
    "superseded: a later head of run {run} has taken over ({evidence})",
    "head",
    "Nothing, if that one was meant; else give only one node the head's name",
    plain="superseded: a later head of run {run} has taken over",
    is_superseded=True,
)
HEAD_LOST = _lost("its head was lost")  # for an attempt in run.json whose head recorded no end
HEAD_SILENT = _lost(
    "the head {head} has been silent for {seconds} s ({evidence})",
    "head",
    plain="the head {head} has been silent for {seconds} s",
)
HEAD_NOT_BACK = _lost(
    "waited too long for {what}: {evidence}", "head", plain="waited too long for {what}"
)
OTHER_RUN = _lost("the head {head} began another run: {theirs}, not {ours}", "head")

# --- 70: a bug in the agent ---------------------------------------------------------------------

BUG = _row(
    Kind.BUG,
    70,
    "a bug in the agent: {error}",
    remedy="Please report it with agent.log, as `Report a bug` in docs/upgrade.md says",
    plain="a bug in the agent",
)
AGENT_KILLED = _row(Kind.BUG, 70, "the agent was killed by {signal} {count} times: giving up")
"""Printed by the parent, as `NO_PROCESS`."""


def stopped(signum: int, *, expected: bool, on_request: bool = False) -> Outcome:
    """Return the outcome of a run that a signal stopped, or a request that stands for one.

    The code is 0 where a stop is `expected` (AGENT_JOB=none), 130 after SIGINT, else 143.
    """
    code = 128 + (signal.SIGINT if signum == signal.SIGINT else signal.SIGTERM)
    code = 0 if expected else code
    name = _SIGNALS.get(signum, f"signal {signum}")  # real-time signals have no name
    if on_request:
        return STOPPED_ON_REQUEST.outcome(code=code, signal=name)
    return STOPPED_BY_SIGNAL.outcome(code=code, signal=name)
