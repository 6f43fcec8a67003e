"""Types are described by one thread at a time: msgspec crashes where two do it at once."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys, threading, types
from agent.base import typed

sys.setswitchinterval(1e-6)
CLASS = '''
class T{0}(Value, frozen=True):
    a: int = 0
    b: "T{1} | None" = None
    c: "dict[str, T{1}]" = {{}}
'''
for round in range(60):
    module = sys.modules[f"m{round}"] = types.ModuleType(f"m{round}")
    source = "from agent.base.value import Value\\n"
    source += "".join(CLASS.format(number, max(0, number - 1)) for number in range(30))
    exec(source, vars(module))
    together = threading.Barrier(3)

    def read(first):
        together.wait()
        for number in range(29 - first, 0, -7):
            typed.convert({"a": 1, "b": {"a": 2}}, getattr(module, f"T{number}"))
            typed.decode('{"a": 1, "b": {"a": 2}}', getattr(module, f"T{number - 1}"))

    threads = [threading.Thread(target=read, args=(first,)) for first in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print("read")
"""


@pytest.mark.processes
def test_three_threads_read_new_types() -> None:
    """A run's threads read records, reports and answers from its first second on."""
    argv = [sys.executable, "-X", "faulthandler", "-c", PROGRAM]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, "read"), done.stderr[-2000:]
