"""The pod lab: N pods on one Linux machine, for scenarios with real processes and networks.

    with Lab(pods=3) as lab:                         # or names=["abc123", "def456"]
        head, *workers = lab.pods                    # also lab["pod0"], iteration
        agent = head.start([python, "-m", "agent"], env={"HEAD_POD_ID": head.name}, cwd=repo)
        agent.wait_for(r"waiting for workers")
        head.cut()
        assert agent.wait(timeout=30) == 75, agent.stderr()

missing() -> str | None                  why no lab can be made here, or None
Lab(pods=3, names=None, *, interface="podnet1", decoy="eth0", subnet="10.77.0",
    decoy_subnet="172.31.250", domain="runpod.internal", unpublished=(), shm="2g", share=(),
    log_dir=None)
  .pods  [name]  iter  .id  .folder
  .publish(name, ip)  .unpublish(name)   takes effect on return; a dotless name: name.domain, too
  .dns(answering=False)                  lookups time out; True: answers again
Pod  .name  .ip  .decoy_ip  .netns  .tmp  .home (host paths of its /tmp and $HOME)  .containers
  .start(argv, env=None, cwd=None, *, clean_env=True, shm=None, image=None, volumes=None)
                -> Container             argv is PID 1; image: another root file system, in which
                                         volumes has the machine's files by their paths there
  .publish(address=None)  .unpublish()   its own name in DNS
  .cut()                                 packets are lost both ways; the link stays up
  .drop(peer)                            its packets to that pod are lost, one way
  .slow(loss=0.3, delay=0.2)             both ways: a share of packets is lost, the rest late
  .heal()                                undoes these three
  .freeze()  .thaw()                     SIGSTOP, SIGCONT to all its processes
  .kill()                                all its containers; peers' connections are reset
  .lose()                                cut, then kill: peers receive nothing
Running (what Container.spawn returns, and the base of Container)
  .pid (the host's)  .running  .started_at  .ended_at (time.monotonic())  .log_paths
  .poll() -> int | None   .wait(timeout=60) -> int     as in a shell: 128+n for signal n
  .signal(number)  .kill()  .stdout()  .stderr()  .tail()
  .wait_for(pattern, stream="both", timeout=30) -> re.Match     fails at once if it ends before
Container(Running)
  .processes() -> list[ProcessInfo]      pid, ppid, host_pid, state, name, cmdline, .zombie,
                                         .environ(); PIDs inside the container; zombies included
  .exec(argv, env=None, timeout=60, cwd=None) -> CompletedProcess     in all its namespaces, with
  .spawn(argv, env=None, cwd=None) -> Running      its environment and env on top (docker exec)
  .freeze()  .thaw()
LabError                                 an error of the lab; TimeoutError: a wait's deadline

A pod sees this machine's files, read-write, except: /tmp and $HOME (private, kept when a container
ends), /run and /dev/shm (new for each container), /proc, /sys, /etc/hosts and /etc/resolv.conf.
Repository, Python and venv are visible even if they are in one of these folders.
"""

from __future__ import annotations

from tools.lab.container import Container, ProcessInfo
from tools.lab.errors import LabError
from tools.lab.lab import Lab
from tools.lab.pod import Pod
from tools.lab.process import Running
from tools.lab.rights import missing

__all__ = ["Container", "Lab", "LabError", "Pod", "ProcessInfo", "Running", "missing"]
