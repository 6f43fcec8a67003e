"""Nothing leaks: a run with a marked secret in every place where a user may put one."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import sys
import zipfile
from typing import TYPE_CHECKING

import pytest

from support.scenario import AGENT, BOOT, Cluster, ends

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tools.lab import Container
    from tools.lab.container import ProcessInfo


def marked(place: str) -> str:
    """Return the secret of a place: a text that is nowhere else."""
    return "Mk" + hashlib.sha256(place.encode()).hexdigest()[:38]


TOKEN, WANDB, RUNPOD = marked("RAY_AUTH_TOKEN"), marked("WANDB_API_KEY"), marked("RUNPOD_API_KEY")
VARIABLES = {
    "HF_TOKEN": marked("HF_TOKEN"),
    "OPENAI_API_KEY": marked("OPENAI_API_KEY"),
    "AWS_SECRET_ACCESS_KEY": marked("AWS_SECRET_ACCESS_KEY"),
    "GRADER_PASSWORD": marked("GRADER_PASSWORD"),
    "SLACK_WEBHOOK": f"http://hooks.example/{marked('SLACK_WEBHOOK')}",
    "DATABASE": f"postgres://me:{marked('DATABASE')}@db.example/runs",
    "AGENT_PREPARE": f"true --token={marked('AGENT_PREPARE')}",
}
"""Variables that Ray, the job and the services inherit."""
IN_COMMAND = ("--hf_token", "--api-key", "--db")
OPTIONS = (
    f"--hf_token={marked('--hf_token')}",
    "--api-key",
    marked("--api-key"),
    f"--db=postgres://me:{marked('--db')}@db.example/runs",
)
IN_SERVICES = ("option", "url", "body", "variable", "step")
SERVICES = f"""
[services.grader]
command = "exec {sys.executable} /tmp/given/serve.py --api-key {marked("option")}"
where = "every"
ready.http = "http://me:{marked("url")}@127.0.0.1:9000/"
ready.body = '{{"api_key": "{marked("body")}"}}'
env = {{ GRADER_TOKEN = "{marked("variable")}" }}

[prepare.data]
command = "env | cut -d= -f1 >/tmp/given/prepared; : --password={marked("step")}"
"""
SECRETS = {
    name: marked(name)
    for name in (
        *("RAY_AUTH_TOKEN", "WANDB_API_KEY", "RUNPOD_API_KEY", *VARIABLES, *IN_COMMAND),
        *(*IN_SERVICES, "AGENT_REWARD", "AGENT_JUDGE_KEY", "AGENT_NOTIFY", ".env"),
    )
}
SERVE = """
import http.server, json
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"rewards": [0.5] * len(asked.get("query", []))}).encode())
    def log_message(self, *_): pass  # it takes messages, too, whose path is the secret
http.server.ThreadingHTTPServer(("0.0.0.0", 9000), Handler).serve_forever()
"""
JOB = """
import hashlib, os, sys, time, ray
@ray.remote(num_cpus=0, scheduling_strategy="SPREAD")
class Trainer:
    def environ(self):
        return dict(os.environ)
def show(where, texts):
    print(where, *(hashlib.sha256(text.encode()).hexdigest() for text in texts), flush=True)
ray.init(log_to_driver=False)
show("argv", sys.argv[1:])
trainers = [Trainer.remote() for _ in range(2)]
for environ in (dict(os.environ), *ray.get([one.environ.remote() for one in trainers])):
    show("environ", environ.values())
print("running", flush=True)
while not os.path.exists("/tmp/go"):
    time.sleep(0.1)
sys.exit(3)
"""
"""Prints the digests of its arguments, and of the variables of driver and actors."""
AGENTS_PATHS = ("/status", "/", "/metrics", "/events")
RAYS_PATHS = (
    *("/", "/api/jobs/", "/api/version", "/api/cluster_status", "/api/component_activities"),
    *("/nodes?view=summary", "/logical/actors", "/events", "/api/v0/tasks/summarize"),
    *(
        f"/api/v0/{kind}?detail=1"
        for kind in ("nodes", "actors", "tasks", "jobs", "workers", "objects", "runtime_envs")
    ),
    "/api/v0/cluster_events?detail=1",
    "/api/v0/placement_groups?detail=1",
)
COMMANDS = (
    *(("plan",), ("plan", "-v"), ("plan", "--json"), ("env",), ("env", "--json")),
    *(("doctor", "-v"), ("doctor", "--json"), ("doctor", "--all")),
    *(("status",), ("status", "--json"), ("explain", "/tmp/logs")),
    *(("logs", node, name) for node in ("poda", "podb") for name in ("agent", "ray", "grader")),
    ("logs", "job"),
)


def found_in(data: bytes) -> set[str]:
    """Return the names of the secrets in some bytes, as text or in base64, also in archives."""
    found = set()
    for name, text in SECRETS.items():
        shifted = (base64.b64encode(b"-" * shift + text.encode())[4:-4] for shift in range(3))
        if any(form in data for form in (text.encode(), *shifted)):
            found.add(name)
    if data[:2] == b"\x1f\x8b":
        found |= found_in(gzip.decompress(data))
    elif zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            found = found.union(*(found_in(archive.read(name)) for name in archive.namelist()))
    return found


def on_disk(root: Path) -> Iterator[str]:
    """Yield what is found in a pod's /tmp, apart from the files that the test put there."""
    files = [p for p in root.rglob("*") if p.is_file() and root / "given" not in p.parents]
    names = {path.name for path in files}
    assert {"agent.log", "raylet.out"} <= names, "the run folder and Ray's session are searched"
    for path in files:
        for name in found_in(path.read_bytes()):
            yield f"{path.relative_to(root)}: {name}"


def environ_of(process: ProcessInfo) -> Mapping[str, str]:
    """Return a process's environment; empty if it has ended."""
    try:
        return process.environ()
    except OSError:
        return {}


def allowed_words(process: ProcessInfo) -> set[str]:
    """Return the secrets that a process's own command line has, since a user wrote them there."""
    if "serve.py" in process.cmdline:
        return {"option"}
    if "train.py" in process.cmdline:  # the driver, and the agent that got it as its arguments
        return {*IN_COMMAND, "AGENT_REWARD"}
    return set()


def allowed_variables(process: ProcessInfo) -> set[str]:
    """Return the secrets that a process may have in its environment."""
    theirs = {*VARIABLES, "AGENT_REWARD"}
    if "ray-bridge" in process.cmdline:
        return {"RAY_AUTH_TOKEN"}
    if "serve.py" in process.cmdline:
        return theirs | {"variable"}
    if "pod-agent run" in process.cmdline:
        return theirs  # the token is overwritten there: services may read that entry of /proc
    return theirs | {"RAY_AUTH_TOKEN", "WANDB_API_KEY"}  # Ray, driver and actors


def in_processes(container: Container) -> Iterator[str]:
    """Yield what is found in command lines and environments that should not have it."""
    processes = container.processes()
    assert {"raylet", "pod-agent"} <= {process.name for process in processes}
    for process in processes:
        line = process.cmdline[:80]
        for name in found_in(process.cmdline.encode()) - allowed_words(process):
            yield f"argv of {process.name} ({line}): {name}"
        text = "\n".join(environ_of(process).values())
        for name in found_in(text.encode()) - allowed_variables(process):
            yield f"environment of {process.name} ({line}): {name}"


def over_http(asker: Container, address: str, paths: tuple[str, ...]) -> Iterator[str]:
    """Yield what is found in the answers of a port, which is asked with the token."""
    curl = ["curl", "-s", "--max-time", "5", "-w", "%{http_code}"]
    for path in paths:
        asked = [*curl, "-H", f"Authorization: Bearer {TOKEN}", f"http://{address}{path}"]
        answer = asker.exec(asked, timeout=30).stdout
        assert answer.endswith("200"), (path, answer[-100:])
        for name in found_in(answer.encode()):
            yield f"{address}{path}: {name}"


def given(pod_tmp: Path) -> None:
    """Write the user's files into a pod."""
    folder = pod_tmp / "given"
    (folder / "code").mkdir(parents=True)
    for name, text in {
        "wandb": WANDB,
        "token": TOKEN,
        "runpod": RUNPOD,
        "serve.py": SERVE,
        "services.toml": SERVICES,
        "code/train.py": JOB,
        "code/.env": f"KEY={marked('.env')}",
        "code/.gitignore": ".env",
    }.items():
        (folder / name).write_text(f"{text}\n")


@pytest.mark.pods(2)
def test_no_secret_leaves_its_place(cluster: Cluster) -> None:
    """Children have what they need; no file, command line, page, API, log or bundle has a secret.

    Allowed are the environments of children that need it, and the command lines into which the
    user wrote it: the agent's, the driver's and a service's own.
    """
    for pod in cluster.pods:
        given(pod.tmp)
    where = f"{cluster.pods[0].ip}:9000"
    cluster.env |= {
        **VARIABLES,
        "WANDB_API_KEY_FILE": "/tmp/given/wandb",
        "RUNPOD_API_KEY_FILE": "/tmp/given/runpod",
        "AGENT_SERVICES": "/tmp/given/services.toml",
        "AGENT_REWARD": f"http://me:{marked('AGENT_REWARD')}@{where}/get_reward",
        "AGENT_WORKING_DIR": "/tmp/given/code",
        "AGENT_JUDGE_KEY": marked("AGENT_JUDGE_KEY"),  # only a judge's reward server gets it
        "AGENT_NOTIFY": f"http://127.0.0.1:9000/{marked('AGENT_NOTIFY')}",
    }
    job = (sys.executable, "train.py", *OPTIONS, "{reward_url}")
    head = cluster.agent(0, *job, env={"RAY_AUTH_TOKEN": TOKEN})
    worker = cluster.agent(1, *job, env={"RAY_AUTH_TOKEN_FILE": "/tmp/given/token"})
    head.wait_for("^running$", "stdout", timeout=BOOT)

    leaks = [*in_processes(head), *in_processes(worker)]
    for pod in cluster.pods:
        paths = AGENTS_PATHS if pod is cluster.pods[0] else ("/status", "/metrics")
        leaks += over_http(worker, f"{pod.ip}:8266", paths)
    leaks += over_http(worker, f"{cluster.pods[0].ip}:8265", RAYS_PATHS)
    own = {**cluster.env, "RAY_AUTH_TOKEN": TOKEN, "RUNPOD_POD_ID": "poda"}
    for command in COMMANDS:
        done = head.exec([AGENT, *command], env=own, timeout=60)
        assert done.returncode in {0, 78}, (command, done.stderr)  # 78: this machine is in use
        leaks += (f"{command}: {x}" for x in found_in((done.stdout + done.stderr).encode()))
    leaks += [found for pod in cluster.pods for found in on_disk(pod.tmp)]
    (cluster.pods[0].tmp / "go").touch()
    assert ends([head, worker], 60) == [3, 3], head.tail()
    assert [*cluster.pods[0].tmp.glob("logs/*/poda/failure-*.tar.gz")], "a bundle is searched"
    leaks += [f"at the end {found}" for pod in cluster.pods for found in on_disk(pod.tmp)]
    for agent in (head, worker):
        leaks += (f"output: {x}" for x in found_in((agent.stdout() + agent.stderr()).encode()))
    assert leaks == []

    lines = [line.split() for line in head.stdout().splitlines()]
    (argv,) = (words for first, *words in lines if first == "argv")
    assert argv == [digest(word) for word in (*OPTIONS, cluster.env["AGENT_REWARD"])]
    environs = [words for first, *words in lines if first == "environ"]
    assert len(environs) == 3
    for environ in environs:
        assert {digest(text) for text in (*VARIABLES.values(), TOKEN, WANDB)} <= {*environ}
    prepared = (cluster.pods[0].tmp / "given/prepared").read_text().split()
    assert ("HF_TOKEN" in prepared, "RAY_AUTH_TOKEN" in prepared) == (True, False)


def digest(text: str) -> str:
    """Return what the job prints of a text."""
    return hashlib.sha256(text.encode()).hexdigest()
