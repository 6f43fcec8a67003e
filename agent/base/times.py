"""The timeouts and intervals in seconds that several modules share, and the order of them.

Each says why it has its value; `RULES` has those that must be below others. A time that a single
module uses stands in that module. The defaults of AGENT_* settings, in settings/model.py, stand as
comments where they belong. Programs in bundled/ that run without the agent keep their own.
"""

from __future__ import annotations

# --- A silent worker, on the head: each step of noticing and tolerating it, in order --------------

REPLY_HELD = 10.0
"""The head delays its reply to a report for so long while nothing has changed. A worker reports
again at once after a reply, so this is also the longest time between two reports.
"""
PEER_DEAD = 3.0  # TCP keepalive closes a held connection after this: a lost pod sends no FIN.
RECONNECT = 0.5  # A worker also closes its connection to report at once: it is back within this.
PROBE_OF_SILENT = 2.2
"""A worker whose connection closed is probed for so long, then logged as silent: with `RECONNECT`
within the 3 s in which a lost worker is named. A lost SYN is sent again after 1 s; on a link that
loses 30 % and delays the rest by 200 ms each way, an answer takes 0.4 s at best, and half of all
tries are lost. A killed agent on a running machine refuses the connection at once.
"""
AGENT_SILENT = REPLY_HELD + 5.0  # A worker with an older report may be replaced at its address.
HOLDER_REPORTS = 5.0  # For an agent to report whose address or rank another one has; then again.
SILENT_WITHOUT_RAY = 15.0  # With torchrun such a worker is lost; with Ray, GCS decides as well.
RECENT_LOSS = 60.0  # A job that fails so soon after a loss failed because of it.
GCS_REPORTS_LOSS = 75.0
"""GCS reports a node dead 15 s after its Ray was killed, 65 s after its network loss (2.60). Waited
for on a given Ray, whose nodes may be unreachable for the agent.
"""
# AGENT_NODE_GRACE (60s): a needed node lost for longer ends the attempt.
FENCE_SHARE = 0.8
"""Share of AGENT_NODE_GRACE after which an unreachable worker stops its own part of an attempt:
after all of it, the head may begin the next one.
"""
FENCE_LATEST_SHARE = 0.95  # Since the last contact, for a worker that notices the silence late.
FENCE_LEAST = 3.0  # The least time that a head has to answer again before the fence.
EARLIER_ATTEMPT_ENDS = 60.0  # Beyond AGENT_NODE_GRACE, for all nodes to end an attempt.
GPUS_FREED = 45.0  # For a driver to free what killed processes held: seconds for 80 GiB.

# --- An agent that does not run -------------------------------------------------------------------

CLOCK_BEAT = 1.0  # The agent's own sign of life, for itself.

# --- A silent head, on a worker -------------------------------------------------------------------

# AGENT_HEAD_GRACE (5m): from the last reply of the head; then the worker leaves with 75.
REPORT_MARGIN = 5.0  # A report times out so long after the head had to answer it.
REPLY_AGE = 15.0  # The last reply to a killed agent may be this old: the next one counts from then.
PLAIN_RAY = 10.0
"""A head whose GCS answers, but no agent for so long, is plain Ray: a killed agent is replaced
sooner, also on a busy machine.
"""

# --- The start of a node --------------------------------------------------------------------------

# AGENT_WAIT_HEAD (10m): on the head its Ray, on a worker the head.
# AGENT_WAIT_WORKERS (10m), later while a worker reports a running prepare step.
# AGENT_WAIT_REWARD (10m), from the start of the server.
# AGENT_WAIT_PREPARE (2h), each step from its own start.
RECORD_UNREADABLE = 4.0  # A killed agent's record that cannot be read is read again for so long.
STALLED_DISK = 2.0  # A stalled disk delays start, end, a share, stacks or logs by no more.
IDLE_DISK = 20.0  # For the run folder and the checkpoints: an idle network disk needs some seconds.
CHECKPOINT_LISTING = 5.0  # For the checkpoints after an attempt, which only inform what follows.
RAY_HANGS = 30.0  # A stopped process of Ray is a lost Ray after this.
MODEL_READ_AFTER = 5.0  # Until Ray has started here: it has the disk and the CPUs first.
RUN_DECIDED = 5.0  # A first report is held for so long until the head has chosen its run.

# --- Probes between nodes before the job ----------------------------------------------------------

NODE_PROBE = 10.0  # For each node's scoring request to the reward server.
BANDWIDTH_SAMPLE = 10.0  # For each node's sample of a link; only a recipe sized by the links waits.
SAMPLE_PAUSE = 2.0  # Between two samples of a link: cores may still be busy with Ray's start.
SAMPLE_LENGTH = 1.0  # The longest time that one sample measures.
SAMPLE_QUEUE = 8.0  # A node answers one sample after the other.
RAYLET_REACHED = 3.0  # A running raylet accepts connections, on a busy machine a little later.
REACH_TRY = 2.0  # One of several tries to reach a raylet.
ALL_REDUCE = 120.0  # For the all-reduce before the job; NCCL's first contact may take a minute.
ALL_REDUCE_SPARE = 10.0  # For its result to arrive after its own time limit.
HEAD_RESULT = 5.0  # For the head's own result, the most detailed one, after another node failed.
ALL_REDUCE_KILLED = 5.0  # Beyond its own time limit, until an all-reduce is killed.
ALL_REDUCE_STOP = 1.0  # The grace of an all-reduce that is stopped.

# --- The job --------------------------------------------------------------------------------------

NO_JOB_STATUS = 120.0  # An attempt is lost if Ray returns no status of its job for so long.
NODES_ASKED = 5.0  # For every node's answer after the job failed: a loss may be the cause.
BRIDGE_HEARTBEAT = 5.0  # The bridge repeats an unchanged status of the job at this interval.
DASHBOARD_SILENT = 10.0  # After so long without an answer of the dashboard, GCS is asked.
RAY_CONNECTION_DEAD = 30.0  # Ray's client sets no timeouts: a cut link would block it forever.
GCS_CALL = 5.0  # For one call to GCS.
LONGEST_BRIDGE_PAUSE = 5.0  # Well below `NO_JOB_STATUS`.
# AGENT_STALL (auto): no step for three times the median, at least STALL_LEAST; AGENT_FIRST_STEP.
STALL_LEAST = 300.0  # A step that takes less is no hang, however short the others were.
STALL_QUIET = 1800.0  # Where steps are not known: no sign of work at all for so long.
FIRST_STEP = 3600.0  # AGENT_FIRST_STEP: a model of 235B loads and compiles for long.
STALL_CHECK_LONGEST = 60.0  # Signs of work are read ten times within AGENT_STALL, no less often.
STALL_STACKS = 30.0  # For all nodes to report their stacks, and what else may explain a hang.
NODE_EXAMINED = 22.0  # For one node to collect them; what is not read in time is left out.
STALL_TASKS = 30.0  # For Ray to list its tasks.
STACK_DUMP = 10.0  # For the stacks of one process.
SERVICE_EXAMINED = 10.0  # For a service to answer one request while a job hangs.
STACK_SIGNALED = 2.0  # For a process to write its stacks on a signal.
RECORDER_DUMP = 15.0  # For torch's flight recorder to write a dump; an H100 took 6.5 s.

# --- Figures of the machines ----------------------------------------------------------------------

FIGURES_READ = 10.0  # Between two readings of a node's figures.
FIGURES_SENT = 30.0  # Between two reports with figures: a head reads those of a thousand nodes.
FIGURES_GPUS = 5.0  # For AMD's tool to report its GPUs: a program in Python, about one second.
FIGURES_LIMIT = 6.0  # For one reader; while a driver or disk hangs, its figures are left out.

# --- Compile caches -------------------------------------------------------------------------------

CACHES_SEED = 300.0  # A slow volume delays a node by no more: then it starts cold.
CACHES_LOOK = 30.0  # Between two looks at a node's cache folder.
CACHES_QUIET = 120.0  # Without a new file for so long, the first steps have compiled all.
CACHES_SAVE = 900.0  # For an archive to be written beside the job.
CACHES_SAVED_AGAIN = 1800.0  # Between two writes of a node.
CACHES_SETTLED = 30.0  # After a failure: what changed later may be of a compiler that was killed.

# --- Attempts and restarts ------------------------------------------------------------------------

FIRST_RETRY_PAUSE = 10.0  # After an attempt in vain; it doubles with each further one in a row.
LONGEST_RETRY_PAUSE = 300.0  # More would only cost pods that wait.
ATTEMPT_SHORT = 600.0  # An attempt lost sooner, without a new checkpoint, made no progress.
RESTARTS_FORGOTTEN = 600.0  # A service's restarts count for so long: four a week are no crash loop.
LONGEST_RESTART_PAUSE = 30.0  # Between two restarts of a service; it starts with none and doubles.

# --- Services and prepare steps -------------------------------------------------------------------

SERVICE_PROBED = 10.0  # Between two probes of a ready service (`alive.every` of its table).
SERVICE_ANSWERS = 60.0  # For each answer of one (`alive.within`).

# --- The end of a run -----------------------------------------------------------------------------

# AGENT_STOP_GRACE (25s): a stop in total.
STOP_FINAL_REPLIES = 2.0  # For the workers to receive the verdict before the head's port closes.
STOP_SERVICES = 3.0  # The services' part of a stop.
STOP_RAY = 3.0  # Ray's part of a stop.
STOP_LEFTOVERS = 1.5  # For processes that services or Ray left behind.
STOP_OUTPUT = 2.0  # For the rest of the job's output to be copied.
STOP_EXIT = 4.0  # For SIGKILL, the bundle and the exit. The job gets the rest of AGENT_STOP_GRACE.
STOP_BUNDLE = 2.0  # For the diagnostics bundle.
_AT_ONCE = max(STOP_FINAL_REPLIES, STOP_SERVICES, STOP_RAY)  # They stop at the same time.
STOP_PARTS = _AT_ONCE + STOP_LEFTOVERS + STOP_OUTPUT + STOP_EXIT  # All of it but the job's part.
STOP_WHOLE = 25.0  # Kubernetes kills after 30 s; a shorter grace shrinks all parts alike.
DESCENDANTS_EXIT = 5.0  # Freeing much memory takes a process a while.
BUNDLE_EXTRA = 1.0  # The caller waits so much longer than the time limit of the bundle's thread.

# --- A pod after its run --------------------------------------------------------------------------

HOLD_REMINDER = 600.0  # A held pod's price is logged again, and a refused stop is tried again.
STARTED_AGAIN = 3600.0  # A pod that a person starts again after its run stays up this long.
POD_RETRY_PAUSE = 1.0  # Before a failed request to RunPod's API is repeated; it doubles.
LONGEST_POD_RETRY_PAUSE = 60.0  # A held pod bills, so that an API that works again is found soon.

# --- Messages to AGENT_NOTIFY ---------------------------------------------------------------------


# --- HTTP servers (the agent's port, the bundled ones), and verbs that ask the agent --------------

LOGIN_WINDOW = 60.0  # An address may send the page's form ten wrong tokens in so long.
STATUS_READ = 0.5  # Between two reads of the status, shared by all readers.
STATUS_REPEATED = 5.0  # An unchanged status is repeated at this interval, as a sign of life.
READER_STALLED = 10.0  # A reader that does not accept an answer within this is disconnected.
STREAM_SILENT = 12.0  # A stream without a status for so long is opened again.
HEAD_GONE = 15.0  # A watcher without a status for so long reports the head as gone.
ONE_REQUEST = 5.0  # For one request of a verb.
VERB_RETRY_PAUSE = 0.5  # Between two requests of a verb that waits.
LOG_LINES_AWAITED = 3.0  # A request for logs waits so for new lines, below the caller's timeout.

# --- Writing --------------------------------------------------------------------------------------

FLUSH = 1.0  # The process waits so long for all writers at its exit.
WRITE_STUCK = 2.0  # A write that takes longer counts as stuck.
WRITE_STALLED = 10.0  # A write that takes longer is reported; a slow disk is faster.
WRITE_RETRY = 15.0  # Until an item that could not be written is tried again.
WAIT_QUIET = 2.0  # Between two records of one wait whose evidence changes.
WAIT_SAID = 15.0  # A wait is logged after this, and a change of its evidence no sooner either,
WAIT_SAID_AGAIN = 60.0  # then after this,
WAIT_REPEATED = 300.0  # and then at this interval.

# --- Polling of processes, files and sockets ------------------------------------------------------

WAIT_READ = 1.0  # For a short read in a thread, such as a file.

# --- the order ----------------------------------------------------------------------------------

RULES = {
    "RECONNECT + PROBE_OF_SILENT < 3": "a worker whose connection closed is named within 3 s",
    "REPLY_HELD < AGENT_SILENT": "a delayed reply is no silence",
    "REPLY_HELD < SILENT_WITHOUT_RAY": "a delayed reply is no silence",
    "REPLY_HELD + REPORT_MARGIN <= REPLY_AGE": "no last reply is older than the next agent assumes",
    "RECORD_UNREADABLE < PLAIN_RAY / 2": "an agent that reads again is no plain Ray",
    "FENCE_SHARE < FENCE_LATEST_SHARE < 1": "the fence precedes the next attempt",
    "BRIDGE_HEARTBEAT < DASHBOARD_SILENT": "an unchanged status is no silence",
    "DASHBOARD_SILENT < RAY_CONNECTION_DEAD < NO_JOB_STATUS": "each source has a turn",
    "LONGEST_BRIDGE_PAUSE + GCS_CALL < NO_JOB_STATUS": "a bridge that crashed is back in time",
    "SAMPLE_QUEUE < BANDWIDTH_SAMPLE": "a sample that waited for its turn still counts",
    "REACH_TRY < RAYLET_REACHED < NODE_PROBE": "a try ends before its probe",
    "HEAD_RESULT < ALL_REDUCE": "an all-reduce that fails ends sooner than one that hangs",
    "ALL_REDUCE_KILLED + ALL_REDUCE_STOP < ALL_REDUCE_SPARE": "a hung all-reduce is reported",
    "STACK_DUMP < NODE_EXAMINED < STALL_STACKS": "one process is read within the time of all",
    "STACK_DUMP + STACK_SIGNALED < NODE_EXAMINED": "a signal follows a failed look",
    "SERVICE_EXAMINED < STALL_STACKS": "services are asked within the time of all nodes",
    "RECORDER_DUMP < NODE_EXAMINED": "a dump is read within the time of its node",
    "STATUS_READ < STATUS_REPEATED < STREAM_SILENT < HEAD_GONE": "a stream is reopened in time",
    "FIGURES_GPUS < FIGURES_LIMIT < FIGURES_READ < FIGURES_SENT": "a hung driver delays no others",
    "CACHES_LOOK < CACHES_QUIET < CACHES_SAVE < CACHES_SAVED_AGAIN": "one write at a time",
    "GPUS_FREED < EARLIER_ATTEMPT_ENDS": "memory that stays held delays an attempt, no more",
    "LOG_LINES_AWAITED < ONE_REQUEST": "a request for logs is answered in time",
    "WRITE_STUCK < WRITE_STALLED < WRITE_RETRY": "a stalled disk is reported before the next try",
    "WAIT_QUIET < WAIT_SAID < WAIT_SAID_AGAIN < WAIT_REPEATED": "a wait is logged less and less",
    "STOP_PARTS < STOP_WHOLE / 2": "the job gets most of a stop",
    "STOP_BUNDLE + FLUSH < STOP_EXIT": "bundle and last writes fit before the exit",
    "FIRST_RETRY_PAUSE < LONGEST_RETRY_PAUSE < ATTEMPT_SHORT": "a pause is no progress",
    "LONGEST_RESTART_PAUSE < RESTARTS_FORGOTTEN": "a crash loop keeps its count",
}
"""Inequalities over these times and settings, each with its reason; a test evaluates them."""
