"""Stand-ins for prime-rl's programs and package: each reads and writes what prime-rl's does.

`rl --dry-run` reads the recipe's flags as strictly as prime-rl, and writes the files of the others;
`inference` is the rehearsal's engine, `env-server` the bundled reward server, `orchestrator` the
rehearsal's trainer with prime-rl's requests. torchrun's ranks wait until that has ended, and the
first of them saves checkpoints. As prime-rl does, `rl` resumes from the highest step, and the
orchestrator saves its own part of one when it is stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
from pathlib import Path

TEXTS = {
    *("deployment.type", "slurm.job-name", "weight-broadcast.type", "model.name", "output-dir"),
    *("run.dir", "run.name", "orchestrator.train.source", "orchestrator.renderer.name"),
    *("trainer.model.optim-cpu-offload", "monitors.wandb.project"),
}
NUMBERS = {
    *("deployment.num-train-nodes", "deployment.gpus-per-node", "ckpt.interval", "ckpt.keep-last"),
    *("max-steps", "seq-len", "orchestrator.batch-size", "orchestrator.group-size"),
    *("orchestrator.env-server-base-port", "orchestrator.train.sampling.max-completion-tokens"),
}
SWITCHES = {"inference", "trainer.model.full-offload"}
"""The flags of prime-rl 0.8.0 that the recipe may set."""
STEPS = "STAND_IN_STEPS"
"""Replaces the steps of a command that nobody can change, such as a start file's."""
_PROGRAM = """#!{python}
import sys

sys.path[:0] = {path!r}
from support.stand_in_prime_rl import PROGRAMS

PROGRAMS[{name!r}](sys.argv[1:])
"""


def install(folder: Path, path: list[str]) -> None:
    """Write the programs into a folder of PATH, and the package into `packages` below it."""
    folder.mkdir(parents=True)
    for name in PROGRAMS:
        program = folder / name
        program.write_text(_PROGRAM.format(python=sys.executable, path=path, name=name))
        program.chmod(0o755)
    packages = folder / "packages"
    for package in ("prime_rl", "prime_rl-0.8.0.dist-info", "datasets"):
        (packages / package).mkdir(parents=True)
    (packages / "prime_rl/__init__.py").touch()
    (packages / "datasets/__init__.py").write_text("load_dataset = print\n")


def rl(words: list[str]) -> None:
    """Write the files of a run."""
    assert words[-2:] == ["--dry-run", "--resume"], words
    options = options_of(words[:-2])
    run = Path(options.output_dir) / options.run_dir
    configs = run / "configs"
    found = {int(path.name.removeprefix("step_")): path for path in run.glob("checkpoints/step_*")}
    resume = max(found, default=0)
    if resume and not (found[resume] / "trainer/.metadata").exists():
        sys.exit(f"rl: Checkpoint not found at {found[resume]}/trainer")
    for folder in run.glob("broadcasts/step_*"):
        if int(folder.name.removeprefix("step_")) > resume:
            shutil.rmtree(folder)
    (run / "finished").unlink(missing_ok=True)
    shutil.rmtree(f"{run}-state", ignore_errors=True)
    if resume:
        kept = f"checkpoint-{resume}"
        shutil.copytree(found[resume] / "trainer" / kept, Path(f"{run}-state") / kept)

    (source,) = options.sources
    environment = source["env"]["taskset"]["id"]
    (configs / "envs/train").mkdir(parents=True, exist_ok=True)
    config = {
        "weight_broadcast": {"type": options.weight_broadcast_type},
        "run": str(run),
        "steps": int(os.environ.get(STEPS, options.max_steps)),
        "interval": options.ckpt_interval,
        "port": str(options.orchestrator_env_server_base_port),
    }
    for name in ("orchestrator", "trainer", f"envs/train/{environment}"):
        (configs / f"{name}.json").write_text(json.dumps(config))
    workers = options.deployment_num_train_nodes * options.deployment_gpus_per_node
    print(f"rl: {workers} workers, environment {environment}, step {resume}", flush=True)


def options_of(words: list[str]) -> argparse.Namespace:
    """Read the arguments; one that is not known ends the program."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for kind, names in ((int, NUMBERS), (str, TEXTS)):
        for name in names:
            place = name.replace("-", "_").replace(".", "_")
            parser.add_argument(f"--{name}", dest=place, type=kind)
    for name in SWITCHES:
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--trainer.optim.lr", type=float)
    options = parser.parse_args(words)
    options.sources = json.loads(options.orchestrator_train_source)
    if options.deployment_type != "multi_node" or not options.inference:
        parser.error("nodes are several, and engines elsewhere")
    if options.orchestrator_batch_size % options.orchestrator_group_size:
        parser.error("Batch size must be divisible by the number of samples per problem")
    return options


def torchrun(words: list[str]) -> None:
    """Wait until the orchestrator has ended, as ranks wait for its batches without a limit."""
    import time  # noqa: PLC0415 - of this program alone

    config = _config_of(words)
    run = Path(config["run"])
    print(f"trainer: {' '.join(words[:4])}", flush=True)
    is_first = "--node-rank=0" in words
    while not (run / "finished").exists():
        if is_first:
            _save(run, int(config["interval"]))
        time.sleep(0.1)


def _save(run: Path, interval: int) -> None:
    """Save the states of the rehearsal that are due as checkpoints of prime-rl."""
    for state in Path(f"{run}-state").glob("checkpoint-*/trainer_state.json"):
        step = int(state.parent.name.removeprefix("checkpoint-"))
        folder = run / f"checkpoints/step_{step}"
        if step % interval == 0 and not folder.exists():
            (folder / "orchestrator").mkdir(parents=True)
            (folder / "orchestrator/progress.pt").touch()
            shutil.copytree(state.parent, folder / "trainer" / state.parent.name)
            (folder / "trainer/.metadata").touch()


def orchestrator(words: list[str]) -> None:
    """Train as prime-rl's orchestrator and trainer do together."""
    config = _config_of(words)
    first = words.index("--model.client.admin-base-url") + 1
    last = words.index("--rollout_transport.host")
    urls = [url.removesuffix("/v1") for url in words[first:last]]
    assert words[words.index("--model.client.base-url") + 1].endswith(":8000/v1")
    from agent.bundled import rehearsal_async  # noqa: PLC0415 - the path is set before

    def stop(*_: object) -> None:
        steps = (path.name for path in Path(f"{config['run']}-state").glob("checkpoint-*"))
        newest = max((int(name.removeprefix("checkpoint-")) for name in steps), default=0)
        part = Path(config["run"]) / f"checkpoints/step_{newest}/orchestrator"
        part.mkdir(parents=True, exist_ok=True)
        (part / "progress.pt").touch()
        sys.exit(1)

    signal.signal(signal.SIGTERM, stop)
    code = rehearsal_async.main(
        [
            *("--dialect", "prime-rl", "--engines", *urls, "--weights-dir", config["run"]),
            *("--reward-url", f"http://127.0.0.1:{config['port']}/get_reward"),
            *("--checkpoints", f"{config['run']}-state", "--steps", str(config["steps"])),
            *("--seconds-per-step", "0.5", "--samples", f"{config['run']}/samples.jsonl"),
        ]
    )
    if code == 0:
        (Path(config["run"]) / "finished").touch()
    sys.exit(code)


def inference(words: list[str]) -> None:
    """Become the rehearsal's engine."""
    options = dict(zip(words[::2], words[1::2], strict=True))
    assert options["--router"] == "None"
    assert options["--vllm.tensor-parallel-size"] == "1"
    place = ("--host", options["--server.host"], "--port", options["--server.port"])
    argv = [sys.executable, "-m", "agent", "rehearsal-engine", *place, "--load-seconds", "0.5"]
    argv += ["--seconds-per-request", "0.02"]
    os.execv(sys.executable, argv)  # noqa: S606 - no shell is wanted


def env_server(words: list[str]) -> None:
    """Score answers until the end."""
    config = _config_of(words)
    print(f"env server: {config['run']}", flush=True)
    server = (sys.executable, "-m", "agent", "reward-server", "--host", "127.0.0.1")
    os.execv(sys.executable, [*server, "--port", config["port"]])  # noqa: S606 - same


def vllm_router(words: list[str]) -> None:
    """Be ready; the rehearsal asks its engines itself."""
    import http.server  # noqa: PLC0415 - of this program alone

    class Ready(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

    workers = words[words.index("--worker-urls") + 1 :]
    assert all(url.startswith("http://") for url in workers), workers
    place = (words[words.index("--host") + 1], int(words[words.index("--port") + 1]))
    http.server.HTTPServer(place, Ready).serve_forever()


def _config_of(words: list[str]) -> dict[str, str]:
    """Return the file that a program reads."""
    config: dict[str, str] = json.loads(Path(words[words.index("@") + 1]).read_text())
    return config


PROGRAMS = {
    "rl": rl,
    "torchrun": torchrun,
    "orchestrator": orchestrator,
    "inference": inference,
    "env-server": env_server,
    "vllm-router": vllm_router,
}
