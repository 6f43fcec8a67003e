"""Ray's legacy debugger, as used with verl: the head finds a worker's breakpoint."""

from __future__ import annotations

import sys
import textwrap

import pytest

from support.scenario import BOOT, RAY, Cluster, ends

LEGACY = {"RAY_AUTH_MODE": "disabled", "RAY_DEBUG": "legacy"}
STOPS = textwrap.dedent(
    """
    import ray
    ray.init(log_to_driver=False)

    @ray.remote(num_cpus=0, resources={"here": 1})
    def work():
        seven = 7
        breakpoint()
        return seven * 6

    print("result", ray.get(work.remote()), flush=True)
    """
)
DEBUG_SESSION = textwrap.dedent(
    """
    import os, subprocess, sys
    ray, address = sys.argv[1:]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}

    class Debug:
        def __init__(self):
            argv = [ray, "debug", "--address=" + address]
            self.process = subprocess.Popen(argv, bufsize=0, **pipes)
            self.seen = ""

        def until(self, word):
            at = len(self.seen)
            while word not in self.seen[at:]:
                more = os.read(self.process.stdout.fileno(), 4096)
                if not more:
                    return False
                self.seen += more.decode()
            return True

        def say(self, line):
            self.process.stdin.write(line.encode() + b"\\n")

        def at_the_breakpoint(self):
            if not self.until("press enter to refresh") or "place.py" not in self.seen:
                return False
            self.say("0")
            return self.until("(Pdb)")  # Ray lists it a moment before it listens

    while not (debug := Debug()).at_the_breakpoint():
        debug.process.kill()
    debug.say("print('seen', seven * 100)")
    debug.until("seen 700")
    debug.say("c")
    debug.until("press enter to refresh")
    debug.process.kill()
    print(debug.seen)
    """
)


@pytest.mark.pods(2)
def test_a_breakpoint_on_a_worker_is_found_from_the_head(cluster: Cluster) -> None:
    """`ray debug` on the head lists it, prints the task's variables, and continues the task."""
    cluster.env["DEBUG_RAY"] = "1"
    (cluster.pods[0].tmp / "place.py").write_text(STOPS)
    (cluster.pods[0].tmp / "person.py").write_text(DEBUG_SESSION)
    job = (sys.executable, "/tmp/place.py")
    head = cluster.agent(0, *job)
    worker = cluster.agent(1, *job, env={"AGENT_RESOURCES": '{"here": 1}'})
    head.wait_for("✓ job ", timeout=BOOT)
    assert "a task that stops at a breakpoint waits for `ray debug`" in head.stderr()
    argv = [sys.executable, "/tmp/person.py", RAY, f"{cluster.pods[0].ip}:6379"]
    session = head.exec(argv, env=LEGACY, timeout=60)
    assert session.returncode == 0, session.stdout + session.stderr
    assert "seen 700" in session.stdout
    assert ends([head, worker], 40) == [0, 0]
    assert head.stdout().splitlines()[-1] == "result 42"
