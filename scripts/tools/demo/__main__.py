"""Groups without GPUs: engines are killed while a trainer goes on, in the lab.

The first pod is the head with the trainer and the reward server; two more have two engines each.
Every ten seconds one engine is killed. At the end it prints what the run has shown.

    ./scripts/demo --groups
"""

from __future__ import annotations

import math
import shutil
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from tools.demo.killer import Killer
from tools.demo.summary import read_summary
from tools.lab.cli import CANNOT, STOPS, Show, end_by_signal, make_lab, make_parser
from tools.lab.rights import missing
from tools.lab.waiting import until

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples" / "services" / "groups.toml"
LOGS = ROOT / "agent-logs"
SHARED = LOGS / "groups"  # for all pods, as a network volume is
SAMPLES = SHARED / "samples.jsonl"
AGENT = str(ROOT / ".venv" / "bin" / "pod-agent")
KILL_EVERY = 10.0
STEPS = 40


def command_line(steps: int) -> list[str]:
    """Return the command line of the lab: every pod runs the agent, and the head the trainer."""
    variables = {
        "AGENT_SERVICES": str(SHARED / "services.toml"),
        "AGENT_LOG_DIR": str(LOGS),
        "AGENT_NUM_GPUS": "2",  # pretended: two engines on each node of the group
        "AGENT_ON_DONE": "exit",
        "AGENT_RERUN": "1",
    }
    settings = [word for name, text in variables.items() for word in ("--env", f"{name}={text}")]
    trainer = [AGENT, "rehearsal-async", "--engines", "{addresses:engine|space}", "--keep"]
    trainer += [
        "--weights-dir",
        str(SHARED / "weights"),
        "--samples",
        str(SHARED / "samples.jsonl"),
    ]
    trainer += ["--checkpoints", str(SHARED / "checkpoints"), "--reward-url", "{reward_url}"]
    trainer += ["--steps", str(steps), "--group", "4", "--seconds-per-step", "2"]
    lab = ["run", "--pods", "3", "--runpod", "--cwd", str(ROOT), *settings]
    return [*lab, "--", AGENT, "run", "--", *trainer]


def main() -> int:
    """Run the demo; return the head's exit code, or 1 if a sample was stale."""
    reason = missing()
    if reason is not None:
        print(f"demo: {reason}", file=sys.stderr)
        return CANNOT
    for number in STOPS:
        signal.signal(number, end_by_signal)
    shutil.rmtree(SHARED, ignore_errors=True)
    SHARED.mkdir(parents=True)
    services = EXAMPLE.read_text(encoding="utf-8").replace("exec pod-agent", f"exec {AGENT}")
    (SHARED / "services.toml").write_text(services, encoding="utf-8")

    args = make_parser().parse_args(command_line(STEPS))
    with make_lab(args) as lab, ExitStack() as stack:
        show = Show(args, lab, stack)
        for number in STOPS:
            signal.signal(number, show.ask)
        killer = Killer(show.containers, KILL_EVERY, show.say)
        head = show.containers[0]

        def step() -> bool:
            has_ended = show.step()
            printed = head.stdout()
            is_training = "step 1/" in printed and f"step {STEPS}/" not in printed
            killer.step(time.monotonic(), is_training=is_training and head.running)
            return has_ended

        until(step, math.inf, "the end of all pods")
        code = head.wait(1)
        logs = LOGS.joinpath("latest").resolve().glob("*/engine-*.jsonl")
        summary = read_summary(head.stdout(), SAMPLES, sorted(logs))
        print(summary.sentence(killer.kills, code), flush=True)
    return code or int(summary.stale > 0)


if __name__ == "__main__":
    sys.exit(main())
