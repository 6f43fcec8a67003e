"""Services and prepare steps: programs beside and before the job, and where they run."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import sys
from collections.abc import Mapping
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

from msgspec import Meta, field, to_builtins
from msgspec.structs import replace

from agent.base import times
from agent.base.fields import Metric, of_kind, of_service
from agent.base.ports import DEFAULTS
from agent.base.text import in_url, own_command
from agent.base.value import Count, Seconds, Value
from agent.frameworks import recipe_of
from agent.frameworks.framework import DEFAULT_DIALECT
from agent.job.front_protocol import LIVE_PATH
from agent.job.groups import NodeGroup
from agent.settings.jobs import recipe_info
from agent.settings.rules import BUNDLED, JUDGE, is_hub_id, is_url, reward_choice, reward_port

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from agent.base.fields import Sample
    from agent.base.ports import Ports
    from agent.node.facts import RayPython
    from agent.settings.model import Settings

_SERVICE_READY_AGAIN = 120.0  # From a restart of a service to its readiness.
NODE_IP = "{node_ip}"  # Placeholder for a node's address
HEAD_IP = "{head_ip}"  # Placeholder for the head's address

NODE_PLACEHOLDERS = ("node_ip", "head_ip", "rank", "log_dir", "port")
SHELL = ("/bin/sh", "-c")
_INERT = re.compile(r"[\w./:,@%+=-]+|\[[0-9A-Fa-f:]+\]|\{\w+\}")  # also an unknown value's name
_OF_SERVICE = r"address:[A-Za-z0-9-]+"
_OF_MEMBERS = r"addresses:[A-Za-z0-9-]+(?:\|url)?(?:\|space|\|json)?"
_OF_SERVICES = rf"{_OF_SERVICE}|{_OF_MEMBERS}"
_OF_NODE = "|".join(NODE_PLACEHOLDERS)
_PLACEHOLDER = re.compile(
    rf"(?<!\$)(//)?\{{({_OF_NODE}|{_OF_SERVICES})\}}(:(?:\d|(?=\{{port\}})))?"
)
_ADDRESS = re.compile(rf"(?<!\$)(//)?\{{({_OF_SERVICES})\}}(:\d)?")
_LIST = re.compile(rf"\{{({_OF_MEMBERS})\}}")
GIVEN_PORT = "{port}"  # Placeholder for the port that the agent gives a service


def service_log(name: str) -> str:
    """Return the file for the output of a service."""
    return f"{name.replace(' ', '-')}.log"


def step_log(name: str) -> str:
    """Return the file for the output of a prepare step."""
    return f"{name.removeprefix('AGENT_').lower().replace('_', '-')}.log"


class Where(Value):
    """The nodes on which something runs."""

    kind: Literal["head", "every", "workers", "rank", "group"] = "head"
    rank: int | None = None
    group: str = ""  # the name of the group
    nodes: int = 1  # of a group, which has the ranks from `rank` on

    @property
    def ranks(self) -> range:
        """Return the ranks of its nodes, where the place has any."""
        return range(0) if self.rank is None else range(self.rank, self.rank + self.nodes)

    def includes(self, rank: int | None, *, is_head: bool) -> bool:
        """Return whether a node is one of them."""
        if self.is_by_rank:
            return rank in self.ranks
        return self.kind == "every" or is_head == (self.kind == "head")

    @property
    def is_by_rank(self) -> bool:
        """Return whether a node's rank says that it is one of them."""
        return self.kind in {"rank", "group"}

    def may_include(self, group: str) -> bool:
        """Return whether a rank may make a node one of them; `group` is what it names, or ''."""
        is_other_group = self.kind == "group" and group not in {"", self.group}
        return self.is_by_rank and not is_other_group

    def meets(self, other: Where) -> bool:
        """Return whether a node may be in both."""
        if self.is_by_rank and other.is_by_rank:
            return not {*self.ranks}.isdisjoint(other.ranks)
        kinds = {self.kind, other.kind}
        return len(kinds) == 1 or "every" in kinds or "head" not in kinds

    def sentence(self) -> str:
        """Return the nodes in words."""
        names = {"head": "the head", "every": "every node", "workers": "the workers"}
        if self.kind == "group":
            return f"the group {self.group}"
        return names.get(self.kind, f"rank {self.rank}")


ON_HEAD = Where("head")
ON_EVERY = Where("every")


class Placeholders(Value):
    """The values of the placeholders on one node."""

    node_ip: str = NODE_IP
    head_ip: str = HEAD_IP
    rank: str = "{rank}"
    log_dir: str = "{log_dir}"
    addresses: Mapping[str, str] = field(default_factory=dict)
    """Those of nodes by the service that runs there, as far as they are known."""
    members: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The `host:port` of each member by the service, as far as they are known."""
    port: str = GIVEN_PORT  # the one that the agent gives a service

    def fill(self, text: str) -> str:
        """Fill in the placeholders; `${…}` of a shell stays.

        In a URL or before a port an IPv6 address gets brackets.
        """
        return self._fill(text, str)

    def fill_addresses(self, text: str) -> str:
        """Fill in `{address:NAME}` and `{addresses:NAME}` alone."""
        return self._fill(text, str, _ADDRESS)

    def words(self, word: str) -> list[str]:
        """Fill in the addresses of one word: it is several where it is a list with spaces."""
        match = _LIST.fullmatch(word)
        filled = self.fill_addresses(word)
        is_list = match is not None and word.endswith("|space}") and filled != word
        return filled.split() if is_list else [filled]

    def shell_command(self, script: str) -> list[str]:
        """Return the argv that runs a shell script with the placeholders filled in.

        A value that a shell would parse becomes a parameter of the script, which no quotes or
        substitutions around the placeholder make the shell parse.
        """
        parameters: list[str] = []

        def inert(value: str) -> str:
            if _INERT.fullmatch(value):
                return value
            parameters.append(value)
            return f"${{{len(parameters)}}}"

        argv = [*SHELL, self._fill(script, inert)]
        if not parameters:
            return argv
        return [*argv, SHELL[0], *parameters]

    def _fill(
        self, text: str, shown: Callable[[str], str], pattern: re.Pattern[str] = _PLACEHOLDER
    ) -> str:
        def value_of(match: re.Match[str]) -> str:
            before = match[1] or ""
            after = match[3] or ""
            kind, _, service = match[2].partition(":")
            service, *forms = service.split("|")
            known = self.members if kind == "addresses" else self.addresses
            if service and service not in known:
                return match[0]
            if kind == "addresses":
                return f"{before}{shown(_list_text(self.members[service], forms))}{after}"
            value = self.addresses[service] if service else getattr(self, kind)
            if before or after:
                value = in_url(value)
            return f"{before}{shown(value)}{after}"

        return pattern.sub(value_of, text)


def _list_text(members: Iterable[str], forms: Collection[str]) -> str:
    """Return a list of `host:port` in the form that a framework takes."""
    if "url" in forms:
        members = [f"http://{member}" for member in members]
    if "json" in forms:
        return json.dumps([*members])
    return (" " if "space" in forms else ",").join(members)


def addressed(text: str) -> list[str]:
    """Return the services whose node's address a text has as `{address:NAME}`."""
    return [name for name, is_list in _named(text) if not is_list]


def listed_members(text: str) -> list[str]:
    """Return the services whose members' addresses a text has as `{addresses:NAME}`."""
    return [name for name, is_list in _named(text) if is_list]


def _named(text: str) -> Iterator[tuple[str, bool]]:
    for match in _ADDRESS.finditer(text):
        kind, _, service = match[2].partition(":")
        yield service.partition("|")[0], kind == "addresses"


PREPARE = "AGENT_PREPARE"
PREPARE_EACH = "AGENT_PREPARE_EACH"
MODEL = "AGENT_MODEL"
CACHES = "AGENT_CACHE_DIR"
"""The names of the steps from variables; AGENT_MODEL fetches the model, AGENT_CACHE_DIR seeds the
compile caches.
"""


class PrepareStep(Value):
    """One step: a shell command, where it runs, and how long it may take."""

    name: str
    command: str
    where: Where
    within: float
    deadline_variable: str = "AGENT_WAIT_PREPARE"
    once: str | None = None
    """A file that is written after success; if it exists, the step is skipped."""
    after: tuple[str, ...] = ()
    """The steps and services that must be done or ready before it starts."""

    @property
    def log(self) -> str:
        """Return the name of the file that holds its output."""
        return step_log(self.name)

    @property
    def addressed(self) -> tuple[str, ...]:
        """Return the services whose node's address its command has."""
        return tuple(dict.fromkeys(addressed(self.command)))

    @property
    def listed_members(self) -> tuple[str, ...]:
        """Return the services whose members' addresses its command has."""
        return tuple(dict.fromkeys(listed_members(self.command)))

    def argv(self, place: Placeholders) -> list[str]:
        """Return the command that runs it on a node."""
        return place.shell_command(self.command)


def prepare_steps(
    settings: Settings, more: tuple[PrepareStep, ...] = ()
) -> tuple[PrepareStep, ...]:
    """Return the steps in the order in which they are shown; `more` come from a file.

    AGENT_PREPARE_EACH makes a node ready: on the head, AGENT_PREPARE starts after it.
    """
    within = settings.wait_prepare
    own = []
    if settings.prepare_each is not None:
        own.append(PrepareStep(PREPARE_EACH, settings.prepare_each, ON_EVERY, within))
    if settings.prepare is not None:
        own.append(PrepareStep(PREPARE, settings.prepare, ON_HEAD, within, after=(PREPARE_EACH,)))
    return (*own, *more)


def wanted_steps(steps: Iterable[PrepareStep]) -> tuple[PrepareStep, ...]:
    """Return the steps that workers run only once the head wants them.

    Nodes that may share an output take turns, and placeholders need values from the head; or a step
    depends on such a step, or on something on another node.
    """
    each = [step for step in steps if step.where.kind == ON_EVERY.kind]
    own = {PREPARE_EACH, MODEL, CACHES, *(step.name for step in each)}
    own -= {step.name for step in each if step.once or _PLACEHOLDER.search(step.command)}

    # What depends on a step or service that is not the node's own is not its own either.
    while True:
        remaining = [step for step in each if step.name in own]
        late = {step.name for step in remaining if not own.issuperset(step.after)}
        if not late:
            break
        own -= late
    return tuple(step for step in each if step.name not in own)


def model_fetch(settings: Settings, ray: RayPython, *, is_here: bool) -> tuple[PrepareStep, ...]:
    """Return the step that fetches a model of the hub; without it each process does so itself.

    A relative path looks like an id; if it exists, it is a path, as for the frameworks.
    """
    model = settings.model
    if model is None or is_here or not is_hub_id(model) or ray.hub is None:
        return ()
    command = shlex.join(own_command(ray.executable, "fetch-model", *model_words(settings)))
    within = settings.wait_prepare
    return (PrepareStep(MODEL, command, ON_EVERY, within, after=(PREPARE_EACH,)),)


def model_words(settings: Settings) -> tuple[str, ...]:
    """Return the arguments of a program about the model: which, and its revision if it is set."""
    model = settings.model or ""
    revision = settings.model_revision
    return (model,) if revision is None else (model, "--revision", revision)


REWARD = "reward server"
BY_COMMAND = "as its command says"
_LOOPBACK = "127.0.0.1"


class ScoringProbe(Value):
    """Ready when a scoring request returns one finite number."""

    url: str


class HttpProbe(Value):
    """Ready when a request returns 2xx and the expected text."""

    url: str
    body: str | None = None  # The JSON body of a POST; None for a GET
    expect: str = ""


class TcpProbe(Value):
    """Ready when a TCP connection succeeds."""

    port: int


class LogPattern(Value):
    """Ready when a line of its output matches."""

    pattern: str


Weights = Literal["sglang", "prime-rl", "nccl"]
"""How a trainer updates an engine's weights: by requests with a folder, as those of SGLang or of
prime-rl, or by NCCL, where only the trainer can.
"""
FRONTED = frozenset({"sglang", "prime-rl"})
"""Those that the agent can send an engine again: its members stand behind a front."""
MOST_MEMBERS = 16
"""Of one service on a node."""
_FRONT = "-front"
_FRONT_READY = 60.0  # For its start, on a machine where everything starts.
_FRONT_RESTARTS = 10
_MEMBER = "."  # between the name of a service, which has no dot, and the number of its member


def service_of(name: str) -> str:
    """Return the service of a member's name; any other name is that of a service."""
    return name.partition(_MEMBER)[0]


def is_member(name: str) -> bool:
    """Return whether a name is that of one of several members of a service on a node."""
    return name.partition(_MEMBER)[2].isdecimal()


def front_port(spec: ServiceSpec, rank: int, index: int) -> int:
    """Return the port of the front behind which a member of a service stands."""
    return spec.front + (rank - (spec.where.rank or 0)) * MOST_MEMBERS + index


def control_port(spec: ServiceSpec) -> int:
    """Return the port, on the head's loopback, on which the agent reaches a service's front."""
    return front_port(spec, spec.where.rank or 0, spec.where.nodes * MOST_MEMBERS)


def front_of(spec: ServiceSpec) -> ServiceSpec:
    """Return the service on the head that is the front of another one."""
    control = control_port(spec)
    argv = own_command(
        sys.executable,
        "front",
        *("--dialect", spec.weights or "", "--control-port", str(control)),
        *("--host", f"{NODE_IP},{_LOOPBACK}", "--state", f"{{log_dir}}/{spec.name}-front.json"),
    )
    if spec.keep:
        argv += ["--keep", str(spec.keep)]
    return ServiceSpec(
        name=f"{spec.name}{_FRONT}",
        asked="",
        argv=tuple(argv),
        ready=HttpProbe(f"http://{_LOOPBACK}:{control}{LIVE_PATH}"),
        within=_FRONT_READY,
        deadline_variable="fixed",
        restarts=_FRONT_RESTARTS,
        alive=_FRONT_IS_ALIVE,
        port=control,
        bind=_LOOPBACK,
        is_front=True,
    )


def member_index(name: str) -> int:
    """Return the number of a member on its node, by its name."""
    return int(name.partition(_MEMBER)[2] or 0)


Readiness = ScoringProbe | HttpProbe | TcpProbe | LogPattern


class LivenessCheck(Value):
    """How a ready service is probed while the job runs."""

    every: float = times.SERVICE_PROBED
    within: float = times.SERVICE_ANSWERS
    misses: int = 3


_FRONT_IS_ALIVE = LivenessCheck(every=5.0, within=5.0)
"""Trainers wait without a limit for one that hangs, and one that runs answers at once."""


class ServiceSpec(Value):
    """One service: its command, nodes, readiness and restarts."""

    name: str
    asked: str  # The user's own text, which is the same on all nodes of a run
    argv: tuple[str, ...] | None
    """Its command, with placeholders; None if it is external and only probed."""
    ready: Readiness
    within: float  # Seconds from start to readiness
    deadline_variable: str
    where: Where = ON_HEAD
    restarts: int = 3
    restarted_within: float = _SERVICE_READY_AGAIN  # Seconds from a restart to readiness
    essential: bool = True
    env: tuple[tuple[str, str], ...] = ()
    port: int | None = None
    bind: str = ""  # The address on which it listens, in words
    url: str = ""  # The URL for jobs, if it is the reward server
    alone: bool = False
    """True if its node only runs this service: it does not join Ray and is no worker."""
    alive: LivenessCheck | None = None
    after: tuple[str, ...] = ()
    """The steps and services that must be done or ready before it starts."""
    gpus: int = 0  # The GPUs of its node that only it sees
    router: str = ""  # The URL of the router that passes the job's requests on to it
    secrets: tuple[str, ...] = ()  # Variables with secrets that only it has in its environment
    weights: Weights | None = None  # How the trainer updates its weights; None: they never change
    keep: int = 0  # The newest folders of weights that its front keeps; 0: it removes none
    front: int = 0  # The first port of its front on the head, which has one for each member
    is_front: bool = False  # It is the front of another service
    judges: str = ""  # The URLs of the judges that it asks, where the run has them

    @property
    def has_members(self) -> bool:
        """Return whether it runs as often as fits on each of its nodes."""
        return self.where.kind == "group" and self.gpus > 0

    @property
    def takes_port(self) -> bool:
        """Return whether the agent gives it a port."""
        texts = (*(self.argv or ()), *(text for _, text in self.env))
        return any(GIVEN_PORT in text for text in texts)

    def members(self, count: int) -> tuple[ServiceSpec, ...]:
        """Return what runs of it on a node where it fits so many times."""
        if not self.has_members:
            return (self,)
        return tuple(self.member(index) for index in range(count))

    def names(self, count: int) -> tuple[str, ...]:
        """Return the names of what runs of it on such a node."""
        if not self.has_members:
            return (self.name,)
        return tuple(f"{self.name}{_MEMBER}{index}" for index in range(count))

    def member(self, index: int) -> ServiceSpec:
        """Return one of its members on a node: with its own name, log and port."""
        port = self.port
        ready = self.ready
        if port is not None and self.takes_port:
            port += index
            ready = replace(ready, port=port) if isinstance(ready, TcpProbe) else ready
        return replace(self, name=f"{self.name}{_MEMBER}{index}", port=port, ready=ready)

    @property
    def asked_again(self) -> LivenessCheck | None:
        """Return how it is probed while the job runs; output patterns cannot be probed again."""
        if isinstance(self.ready, LogPattern):
            return None
        return self.alive or LivenessCheck()

    @property
    def log(self) -> str:
        """Return the name of the file that holds its output."""
        return service_log(self.name)

    @property
    def addressed(self) -> tuple[str, ...]:
        """Return the services whose node's address its command, environment or router has."""
        return tuple(dict.fromkeys(name for text in self._texts for name in addressed(text)))

    @property
    def listed_members(self) -> tuple[str, ...]:
        """Return the services whose members' addresses they have."""
        return tuple(dict.fromkeys(name for text in self._texts for name in listed_members(text)))

    @property
    def _texts(self) -> list[str]:
        return [*(self.argv or ()), *(text for _, text in self.env), self.router]

    @property
    def remedy(self) -> str:
        """Return what to do where it does not answer; its URL without a login or a query."""
        if self.argv is not None:
            return f"See the end of {self.log}"
        parts = urlsplit(self.url)
        place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        return f"Start it at {place}, or correct AGENT_REWARD"

    def command(self, place: Placeholders) -> list[str]:
        """Return its argv on a node; not for external services."""
        assert self.argv is not None  # noqa: S101 - asked only where there is one
        place = self.place(place)
        if self.argv[:2] == SHELL:
            return place.shell_command(self.argv[2])
        return [place.fill(word) for word in self.argv]

    def environment(self, place: Placeholders) -> dict[str, str]:
        """Return its own environment variables."""
        return {name: self.place(place).fill(text) for name, text in self.env}

    def place(self, place: Placeholders) -> Placeholders:
        """Return the placeholders with its own port, where the agent gives it one."""
        return replace(place, port=str(self.port)) if self.takes_port and self.port else place


def reward_service(
    settings: Settings,
    command: tuple[str, ...] | None,
    base: Ports = DEFAULTS,
    judge: Mapping[str, Any] | None = None,
) -> ServiceSpec | None:
    """Return the reward server of this run, or None; `judge` is what it asks, for its --judge.

    The agent's own Python runs the bundled one: the image installs math-verify there.
    """
    reward = reward_choice(settings, command)
    if reward == "off":
        return None

    # One that is external is only probed.
    port = reward_port(settings, command, base)
    path = settings.reward_path
    url = reward if is_url(reward) else f"http://{NODE_IP}:{port}{path}"
    external = ServiceSpec(
        name=REWARD,
        asked=reward,
        argv=None,
        ready=ScoringProbe(url),
        within=settings.wait_reward,
        deadline_variable="AGENT_WAIT_REWARD",
        url=url,
    )
    if is_url(reward):
        return external

    # The bundled one replies as the job's client expects.
    if reward in BUNDLED:
        flags = ["--host", f"{NODE_IP},{_LOOPBACK}", "--port", str(port), "--path", path]
        job = recipe_info(settings, command)
        dialect = DEFAULT_DIALECT if job is None else recipe_of(job).FRAMEWORK.dialect
        if dialect != DEFAULT_DIALECT:
            flags += ["--dialect", dialect]
        if judge is not None:
            flags += ["--judge", json.dumps(judge)]
            external = replace(external, secrets=("AGENT_JUDGE_KEY",))
        if judge is not None and settings.judge_url is None:
            external = replace(external, after=(JUDGE,), judges=judge["url"])
        argv = tuple(own_command(sys.executable, "reward-server", *flags))
        return replace(external, argv=argv, port=port, bind=f"{NODE_IP} and {_LOOPBACK}")

    # A command may read data that the prepare steps provide.
    return replace(
        external,
        argv=(*SHELL, reward),
        env=(("AGENT_REWARD_PORT", str(port)), ("AGENT_REWARD_PATH", path)),
        port=port,
        bind=BY_COMMAND,
        after=(PREPARE_EACH, PREPARE),
    )


def service_only_ranks(services: Iterable[ServiceSpec]) -> frozenset[int]:
    """Return the ranks of nodes that only run a service and do not join Ray."""
    return frozenset(rank for spec in services if spec.alone for rank in spec.where.ranks)


def reward_url(services: Iterable[ServiceSpec], place: Placeholders) -> str:
    """Return the reward URL for jobs, or ''; `place` is the reward server's node."""
    return next((place.fill(spec.url) for spec in services if spec.url), "")


def digest(services: Iterable[ServiceSpec], steps: Iterable[PrepareStep] = ()) -> str:
    """Return a hash of the services and steps that must be equal on all nodes.

    Those of the head alone are left out, and so are argvs, since paths of programs differ between
    nodes, and the ports of fronts, which only the head uses.
    """
    rows = [
        {**to_builtins(spec), "argv": None, "front": 0}
        for spec in services
        if spec.where.kind != ON_HEAD.kind
    ]
    rows += [to_builtins(step) for step in wanted_steps(steps)]
    text = json.dumps(rows, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class ServicesFile(Value):
    """The contents of a services file; empty without a file."""

    services: tuple[ServiceSpec, ...] = ()
    steps: tuple[PrepareStep, ...] = ()
    groups: tuple[NodeGroup, ...] = ()
    reward: str | None = None
    """AGENT_REWARD as `[services.reward]` sets it: a command or `builtin`; None without it."""
    reward_fields: Mapping[str, Any] = field(default_factory=dict)
    """The fields of the reward server that this table sets."""
    ask: Mapping[str, Any] = field(default_factory=dict)
    """How the judge is asked: the keys `ask.` of `[services.judge]`."""


NO_FILE = ServicesFile()


NAMES_IN_AFTER = {
    "model": MODEL,
    "reward": REWARD,
    "AGENT_REWARD": REWARD,
    **{name: name for name in (MODEL, PREPARE, PREPARE_EACH)},
}
"""Names in `after` besides the tables of a file, with their names in a run.

A dependency that the run lacks, such as the fetch of a model that is a path, is skipped.
"""


def longest_waits(rows: Iterable[PrepareStep | ServiceSpec]) -> dict[str, float]:
    """Return by name how long each may wait for its dependencies; {} without dependencies."""
    known = {row.name: row for row in rows}
    after = {row.name: [name for name in row.after if name in known] for row in known.values()}
    if not any(after.values()):
        return {}

    # A row waits until the last of its dependencies has waited and is done.
    waits: dict[str, float] = {}
    for name in TopologicalSorter(after).static_order():
        ends = [waits[dependency] + known[dependency].within for dependency in after[name]]
        waits[name] = max(ends, default=0.0)
    return waits


LATENCY_BOUNDS = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds in seconds; slower answers are counted in one more bucket."""
_BUCKETS = len(LATENCY_BOUNDS) + 1
_LENGTH = Meta(min_length=_BUCKETS, max_length=_BUCKETS)


def _buckets(counts: tuple[int, ...], owner: Latency) -> Iterator[Sample]:
    """Yield the series of a histogram."""
    cumulative = 0
    for bound, number in zip((*LATENCY_BOUNDS, "+Inf"), counts, strict=True):
        cumulative += number
        yield {"le": bound}, cumulative, "_bucket"
    yield {}, owner.total, "_sum"
    yield {}, cumulative, "_count"


_ANSWERS = Metric(
    "histogram",
    "service_answer_seconds",
    "Latency of a probe's answer.",
    labels=("service",),
    samples=_buckets,
)


class Latency(Value):
    """Answer times of one service since its node's agent started."""

    last: Annotated[
        Seconds, of_service("service_last_answer_seconds", "Latency of the last answer.")
    ] = 0.0
    total: Seconds = 0.0
    counts: Annotated[tuple[Count, ...], _LENGTH, _ANSWERS] = (0,) * _BUCKETS
    """Answers per bucket, not cumulative."""

    @property
    def count(self) -> int:
        """Return the number of answers."""
        return sum(self.counts)

    def with_answer(self, seconds: float) -> Latency:
        """Return a copy that counts one more answer."""
        counts = [*self.counts]
        counts[sum(seconds > bound for bound in LATENCY_BOUNDS)] += 1
        return Latency(round(seconds, 4), round(self.total + seconds, 4), tuple(counts))


RUN_NODES = "Run-Nodes"
"""The header of a probe with the run's nodes, which the bundled reward server serves first."""
RUN_JUDGES = "Run-Judges"
"""The header of a probe with the URLs of the run's judges, as the bundled reward server asks them;
'': all are given up.
"""
PROBE_KEY = "Probe-Key"
"""The header with the key by which a probe may name other judges."""
JUDGE_AWAITED = "Judge-Awaited"
"""The header of a 503 of the bundled reward server, which is well: only its judge is late."""
JUDGE_TOTALS = "Judge-Totals"
"""The header of the bundled reward server's replies with what its judge was asked so far."""


_TOKENS = ("judge_tokens_total", "Tokens that the judge has counted.")


class JudgeCost(Value):
    """What a judge was asked, and what that cost."""

    requests: Annotated[Count, of_service("judge_requests_total", "Requests to the judge.")] = 0
    prompt_tokens: Annotated[Count, of_service(*_TOKENS, of_kind("prompt"))] = 0
    completion_tokens: Annotated[Count, of_service(*_TOKENS, of_kind("completion"))] = 0
    ungraded: Annotated[Count, of_service("judge_ungraded_total", "Answers that got no grade.")] = 0
    """They got the user's reward for answers without a grade."""

    @classmethod
    def read(cls, header: str) -> JudgeCost | None:
        """Read the header; None for anything else."""
        pairs = (word.partition("=") for word in header.split())
        counts = {name: int(text) for name, _, text in pairs if re.fullmatch(r"[0-9]{1,15}", text)}
        return cls(**counts) if counts.keys() == {*cls.__struct_fields__} else None

    def plus(self, other: JudgeCost) -> JudgeCost:
        """Return the sum of both."""
        names = self.__struct_fields__
        return JudgeCost(**{name: getattr(self, name) + getattr(other, name) for name in names})
