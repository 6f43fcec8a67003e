"""Lines of a job's script that would end the agent or its Ray, or start another one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.checks.finding import CheckedNode, Level
from agent.checks.job_needs import job_script
from agent.node.facts import ScriptLine
from agent.node.job_script import script_lines
from agent.platforms.resolve import resolve
from agent.settings import load
from support.captured import machine

if TYPE_CHECKING:
    from pathlib import Path

    from agent.checks.finding import Finding

SLIME = """#!/bin/bash
# for rerun the task: pkill -9 python
pkill -9 sglang
sleep 3
ray stop --force
pkill -9 ray
pkill -9 python
sleep 3
set -ex
export PYTHONUNBUFFERED=1
ray start --head --node-ip-address ${MASTER_ADDR} --num-gpus 8
"""


def lines_of(
    folder: Path, text: str, name: str = "run.sh", *, with_ray: bool = True
) -> tuple[ScriptLine, ...]:
    """Return what is found in a script with this text."""
    script = folder / name
    script.write_text(text)
    command = ["python3", "-u"] if name.endswith(".py") else ["bash"]
    return script_lines([*command, str(script)], with_ray=with_ray)


def found(folder: Path, text: str, *, with_ray: bool = True) -> list[int]:
    """Return the numbers of the lines that are found in a shell script."""
    return [line.number for line in lines_of(folder, text, with_ray=with_ray)]


def findings(environ: dict[str, str], lines: tuple[ScriptLine, ...]) -> list[Finding]:
    """Return what is said on a node whose job's script has these lines."""
    facts = replace(machine(environ), script_lines=lines)
    settings = load(environ, ["bash", "run.sh"]).settings
    return [*job_script(CheckedNode(facts, settings, resolve(environ, settings, facts)))]


def test_the_clean_up_of_an_upstream_script(tmp_path: Path) -> None:
    """What would end the run is found by its line; sglang's processes are none of ours."""
    lines = lines_of(tmp_path, SLIME)
    assert [line.number for line in lines] == [5, 6, 7, 11]
    assert all(line.is_sure for line in lines)  # the comment's `for` opens no loop
    assert found(tmp_path, SLIME, with_ray=False) == [7]


@pytest.mark.parametrize(
    "line",
    [
        "pkill -9 python",
        "pkill python3",
        "pkill -f 'python.*agent'",
        "sudo pkill -KILL python || true",
        "/usr/bin/pkill -9 ray 2>/dev/null",
        "killall python3",
        "killall -9 -q python3 raylet",
        "ray stop --force",
        "sleep 1; ray stop",
        "timeout 30 ray stop -f &>/dev/null || true",
        "ps aux | grep python | grep -v grep | awk '{print $2}' | xargs kill -9",
        "ps -ef | grep ray | awk '{print $2}' | xargs -r kill -9",
        "kill -9 $(pgrep -f raylet)",
        "kill -9 `pidof python3`",
        "ray start --head",
        "ray start --address=$HEAD:6379 \\\n  --num-gpus 8",
        "/opt/venv/bin/ray start --block &",
        "ray job submit --address=http://127.0.0.1:8265 -- python3 train.py",
        'pkill -9 "python"',
        "pkill -9 ray::",
        "FOO=1 pkill python",
        "pod-agent run -- python3 train.py",
        "AGENT_JOB=rehearsal /opt/pod-agent/bin/pod-agent",
    ],
)
def test_what_ends_the_run(tmp_path: Path, line: str) -> None:
    """Each form is found, at the place of a command."""
    assert found(tmp_path, f"set -x\n{line}\necho done\n") == [2]


@pytest.mark.parametrize(
    "line",
    [
        "# pkill -9 python",
        "echo 'pkill -9 python'",
        'echo "run: ray stop --force; pkill python"',
        "printf '%s\\n' ray stop",
        "pkill -9 sglang",
        "pkill -9 redis",
        "pkill -P $$ python",
        "pkill -F server.pid",
        'pkill -f "$NAME"',
        "kill -9 $SERVER_PID",
        "kill %1",
        "grep python log.txt",
        "ray status",
        "ray job stop x",
        "pkill -9 python  # pod-agent: ignore",
        "cat <<EOF\npkill -9 python\nEOF",
        "ssh worker 'pkill -9 python'",
        "pip install ray; python train.py --stop",
        "ray start --head  # pod-agent: ignore",
        'echo "usage:\n  ray start --head\n  pkill python"',
        'ARGS=\'{\n  "cmd": "ray stop"\n}\'',
        "python3 - <<'E'\nimport ray\nray stop\nE",
        "cat <<< word\necho ray start",
        "echo $'it\\'s' # ray stop",
        "ray job logs x; ray starter; array start",
        'pkill -f "python my_server.py"',
        "pod-agent logs job",
        "exec pod-agent retriever --port 8000",
    ],
)
def test_what_does_not(tmp_path: Path, line: str) -> None:
    """Comments, printed text, other processes, other hosts, and lines that the user insists on."""
    assert found(tmp_path, f"set -x\n{line}\necho done\n") == []


@pytest.mark.parametrize(
    ("text", "sure"),
    [
        ("pkill python\n", True),
        ('if [ -n "$CLEAN" ]; then\n  pkill python\nfi\n', False),
        ("if true; then echo x; fi\npkill python\n", True),
        ("cleanup() {\n  pkill python\n}\n", False),
        ("cleanup() {\n  true\n}\npkill python\n", True),
        ("for h in $HOSTS; do\n  ray stop\ndone\n", False),
        ("for h in $HOSTS; do\n  echo $h\ndone\nray stop\n", True),
        ("case $1 in\n  stop) ray stop ;;\nesac\n", False),
        ("case $1 in\n  a) true ;;\nesac\nray stop \\\n  --force\n", True),
        ('[ -z "$KEEP" ] && ray stop\n', False),
        ("trap 'ray stop' EXIT\npkill python\n", True),
        ("echo 'waiting for ray'\npkill python\n", True),
        ("# if this is a rerun\npkill python\n", True),
        ("if pkill python; then\n  true\nfi\n", True),
        ("for h in a b; do pkill python; done\n", False),
        ("true || pkill python\n", False),
        ("sleep 3; pkill python\n", True),
        ("function clean {\n  pkill python\n}\n", False),
        ("function clean\n{\n  pkill python\n}\n", False),
        ("function clean\n{\n  true\n}\npkill python\n", True),
        ("[ -e x ] || { echo no; exit 1; }\npkill python\n", True),
        ("[ -e x ] || { pkill python; }\n", False),
        ("while read -r x; do\n  true\ndone < list\npkill python\n", True),
        ("if true\nthen\n  for i in 1; do echo $i; done\nfi; pkill python\n", True),
    ],
)
def test_a_line_that_may_not_be_reached_is_not_sure(tmp_path: Path, text: str, sure: bool) -> None:  # noqa: FBT001
    """Below a condition, in a loop or a function it is a warning."""
    (line,) = lines_of(tmp_path, text)
    assert line.is_sure is sure


def test_python(tmp_path: Path) -> None:
    """Calls that run a command count, printed text does not; only those at the top are sure."""
    text = (
        "import os, subprocess\n"
        'print("pkill -9 python")\n'
        'os.system("pkill -9 sglang; ray stop --force")\n'
        "def clean():\n"
        '    subprocess.run(["pkill", "-9", "python"], check=False)\n'
        "    execute(f\"{'' if x else 'ray stop --force; '}sleep {n}\")\n"
    )
    lines = lines_of(tmp_path, text, "run.py")
    assert [(line.number, line.is_sure) for line in lines] == [(3, True), (5, False), (6, False)]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("ray.init(num_gpus=8)\n", [(2, "size", True)]),
        ("def main():\n    ray.init(num_cpus=4)\n", [(3, "size", True)]),
        ("if __name__ == '__main__':\n    ray.init(\n        num_gpus=8)\n", [(3, "size", True)]),
        ("if not ray.is_initialized():\n    ray.init(num_gpus=8)\n", [(3, "size", False)]),
        ("ray.init(num_gpus=args.gpus)\n", [(2, "size", False)]),
        ("ray.init(address='10.0.0.1:6379')\n", [(2, "address", True)]),
        ("context = ray.init('ray://head:10001')\n", [(2, "address", True)]),
        ("ray.init(address='local', num_gpus=1)\n", [(2, "address", True)]),
        ("ray.init(num_gpus=8)  # pod-agent: ignore\n", []),
        ("ray.init()\nray.init('auto')\nray.init(address=None, num_gpus=None)\n", []),
        ("ray.init(address=args.address)\nwandb.init(num_gpus=8)\n", []),
        ("'ray.init(num_gpus=8)'\n# ray.init(num_gpus=8)\n", []),
    ],
)
def test_init_of_ray(tmp_path: Path, text: str, lines: list[tuple[int, str, bool]]) -> None:
    """A number of GPUs or CPUs, or an address, does not fit the Ray that runs already."""
    script = tmp_path / "train.py"
    script.write_text(f"import ray\n{text}")
    found_lines = script_lines(["torchrun", "--nproc-per-node", "8", str(script)], with_ray=True)
    assert [(line.number, line.action, line.is_sure) for line in found_lines] == lines
    assert script_lines(["python3", str(script)], with_ray=False) == ()


def test_scripts_that_the_script_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One level of them, from the folder of the job or of the script; sure if both lines are."""
    monkeypatch.chdir(tmp_path)
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    (scripts / "run.sh").write_text(
        'source "${SCRIPT_DIR}/clean.sh"\n'
        "if true; then\n  bash -x more.sh 8\nfi\n"
        "./here.sh\n. missing.sh\nbash $X\nbash run.sh\n"
        "python3 -u train.py\n"
    )
    (scripts / "clean.sh").write_text("#!/bin/bash\npkill -9 python\nbash ../deep.sh\n")
    (tmp_path / "more.sh").write_text("pkill -9 python\n")
    (tmp_path / "here.sh").write_text("ray stop  # pod-agent: ignore\n")
    (tmp_path / "train.py").write_text("import ray\nray.init(num_gpus=8)\n")
    (tmp_path / "deep.sh").write_text("pkill -9 python\n")
    lines = script_lines(["bash", "scripts/run.sh"], with_ray=True)
    assert [(line.path, line.number, line.is_sure) for line in lines] == [
        ("scripts/clean.sh", 2, True),
        ("more.sh", 1, False),
        ("train.py", 2, True),
    ]


def test_the_number_of_scripts_that_are_read_is_bounded(tmp_path: Path) -> None:
    """A script that starts hundreds is no reason to read them all."""
    script = tmp_path / "run.sh"
    script.write_text("".join(f"bash s{number}.sh\n" for number in range(40)))
    for number in range(40):
        (tmp_path / f"s{number}.sh").write_text("pkill python\n" if number > 20 else "true\n")
    assert script_lines(["bash", str(script)], with_ray=True) == ()


def test_the_command_itself(tmp_path: Path) -> None:
    """The text of `bash -c` is read, and a program that is a script; other files are not."""
    (line,) = script_lines(["bash", "-lc", "pkill -9 python; python t.py"], with_ray=True)
    assert (line.path, line.number) == ("the command after --", 1)
    (line,) = script_lines(["ray", "job", "submit", "--", "python", "t.py"], with_ray=True)
    assert (line.path, line.action) == ("the command after --", "submit")
    program = tmp_path / "go"
    program.write_text("#!/bin/sh\nray stop\n")
    assert [line.number for line in script_lines([str(program)], with_ray=True)] == [2]
    assert script_lines(["python3", str(tmp_path / "missing.py")], with_ray=True) == ()
    (tmp_path / "data.sh").write_bytes(b"\xff\xfe\x00'\"")
    assert script_lines(["bash", str(tmp_path / "data.sh")], with_ray=True) == ()


BY_NODE = {"RAY_WORKER": "1", "AGENT_HEAD": "10.0.0.9", "AGENT_LAUNCHER": "node"}


@pytest.mark.parametrize(
    ("environ", "levels"),
    [
        ({}, [Level.FAIL, Level.WARN]),
        ({"RAY_WORKER": "1", "AGENT_HEAD": "10.0.0.9"}, []),
        (BY_NODE, [Level.FAIL, Level.WARN]),
    ],
)
def test_where_it_is_refused(environ: dict[str, str], levels: list[Level]) -> None:
    """On the head, without Ray on every node; the remedy names how to insist."""
    lines = (
        ScriptLine("run.sh", 7, "pkill -9 python", "kill", is_sure=True),
        ScriptLine("run.sh", 9, "ray stop", "stop", is_sure=False),
    )
    said = findings(environ, lines)
    assert [one.level for one in said] == levels
    for one in said[:1]:
        assert one.what == "run.sh, line 7: `pkill -9 python` would end the agent or its Ray"
        assert "# pod-agent: ignore" in one.remedy


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("ray start --head", "the agent starts Ray on every node"),
        ("ray stop", "the agent ends what former runs left"),
        ("ray job submit -- python t.py", "only the command after its `--`"),
        ("killall python3", "a closer name"),
    ],
)
def test_each_line_has_its_remedy(tmp_path: Path, text: str, instead: str) -> None:
    """A finding names what to write instead."""
    (finding,) = findings({}, lines_of(tmp_path, text))
    assert finding.level is Level.FAIL
    assert f"line 1: `{text}`" in finding.what
    assert instead in finding.remedy


@pytest.mark.parametrize(
    "fragment",
    [
        *("pkill ", "pkill -9 ", "a=1 ", ";a=", "'", '"', '\\"', "$'", "<<E\n", "<<'E", "\\\n"),
        *("if ", "{ ", "&& ", "(", " python", "python.", ".*", "ray::", "/", " \t", "-P "),
        *("source ", "$(", "function a {", "# ", "fi\n", "x.sh/", "ray job "),
    ],
)
def test_repeated_fragments_take_linear_time(fragment: str) -> None:
    """A long line, and many openings without an end, are read in bounded time."""
    for before in ("", "pkill ", "ray ", '"', "<<E "):
        began = time.process_time()
        script_lines(["bash", "-c", before + fragment * 5_000], with_ray=True)
        assert time.process_time() - began < 1
