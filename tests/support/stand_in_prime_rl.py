"""Programs of prime-rl: what each reads and writes; nothing is trained.

`rl --dry-run` writes the files of the others; `inference` is the rehearsal's engine, `orchestrator`
the rehearsal's trainer with prime-rl's requests, and torchrun's ranks wait until that has ended.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

_PROGRAM = """#!{python}
import sys

sys.path[:0] = {path!r}
from support.stand_in_prime_rl import PROGRAMS

PROGRAMS[{name!r}](sys.argv[1:])
"""


def install(folder: Path, path: list[str]) -> None:
    """Write the programs into a folder of PATH."""
    folder.mkdir(parents=True)
    for name in PROGRAMS:
        program = folder / name
        program.write_text(_PROGRAM.format(python=sys.executable, path=path, name=name))
        program.chmod(0o755)


def rl(words: list[str]) -> None:
    """Write the files of a run, whose folder and transport the configuration names."""
    assert words[0] == "@"
    assert words[2:] == ["--dry-run", "--resume"]
    config = json.loads(Path(words[1]).read_text())
    configs = Path(config["run"]) / "configs"
    (configs / "envs/train").mkdir(parents=True, exist_ok=True)
    broadcast = {"weight_broadcast": {"type": config["broadcast"]}, **config}
    for name in ("orchestrator", "trainer", "inference", "envs/train/reverse"):
        (configs / f"{name}.json").write_text(json.dumps(broadcast))
    print(f"rl: files in {configs}", flush=True)


def torchrun(words: list[str]) -> None:
    """Wait until the orchestrator has ended, as ranks wait for its batches without a limit."""
    import time  # noqa: PLC0415 - of this program alone

    config = _config_of(words)
    print(f"trainer: {' '.join(words[:4])}", flush=True)
    while not (Path(config["run"]) / "finished").exists():
        time.sleep(0.1)


def orchestrator(words: list[str]) -> None:
    """Train as prime-rl's orchestrator and trainer do together."""
    config = _config_of(words)
    first = words.index("--model.client.admin-base-url") + 1
    last = words.index("--rollout_transport.host")
    urls = [url.removesuffix("/v1") for url in words[first:last]]
    assert words[words.index("--model.client.base-url") + 1].endswith(":8000/v1")
    from agent.bundled import rehearsal_async  # noqa: PLC0415 - the path is set before

    code = rehearsal_async.main(
        [
            *("--dialect", "prime-rl", "--engines", *urls, "--weights-dir", config["run"]),
            *("--reward-url", config["reward"], "--steps", str(config["steps"])),
            *("--seconds-per-step", "0.5"),
        ]
    )
    if code == 0:
        (Path(config["run"]) / "finished").touch()
    sys.exit(code)


def inference(words: list[str]) -> None:
    """Become the rehearsal's engine."""
    import os  # noqa: PLC0415 - of this program alone

    options = dict(zip(words[2::2], words[3::2], strict=True))
    assert options["--vllm.data-parallel-size"] == "1"
    place = ("--host", options["--server.host"], "--port", options["--server.port"])
    argv = [sys.executable, "-m", "agent", "rehearsal-engine", *place, "--load-seconds", "0.5"]
    argv += ["--seconds-per-request", "0.02"]
    os.execv(sys.executable, argv)  # noqa: S606 - no shell is wanted


def env_server(words: list[str]) -> None:
    """Serve an environment until the end."""
    import time  # noqa: PLC0415 - of this program alone

    print(f"env server: {_config_of(words)['run']}", flush=True)
    while True:
        time.sleep(1)


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
