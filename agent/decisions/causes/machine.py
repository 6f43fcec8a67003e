"""Rows for the memory and the disks of a node."""

from __future__ import annotations

from agent.decisions.causes.row import Cause, Weight, Words

_SHARED = (
    r"/dev/shm|shared_memory\.py|_share_filename|torch_shm|/psm_|nccl-\w{6}|posix_fallocate|sem_"
)
_LESS_MEMORY = (
    "Give the pods more memory, or the job less to hold: fewer loader workers, less offloading, a "
    "smaller replay or rollout batch"
)

MEMORY: tuple[Cause, ...] = (
    Cause(
        "memory",
        ("host_memory_ray",),
        "a node ran out of memory, and Ray killed a worker on it",
        _LESS_MEMORY,
        (
            Words(
                "killed due to the node running low on memory",
                "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on "
                "memory.",
            ),
            Words(
                "were killed due to the node running low on memory",
                "ray.exceptions.OutOfMemoryError: 1 worker(s) were killed due to the node running "
                "low on memory.",
            ),
            Words(
                "killed due to memory pressure",
                "(raylet) node_manager.cc:3084: 4 Workers (tasks / actors) killed due to memory "
                "pressure (OOM), 0 Workers crashed due to other reasons at node (ID: b2)",
                only=r"[1-9]\d* Workers \(tasks / actors\) killed due to memory pressure",
                mild=True,
            ),
            Words(
                "RayOutOfMemoryError",
                "RayOutOfMemoryError: More than 95% of the memory on node x is",
            ),
            Words(
                "NODE_OUT_OF_MEMORY",
                "Worker exit type: NODE_OUT_OF_MEMORY Worker exit detail: Task",
            ),
            Words(
                "due to the node running low on memory",
                "Worker killed due to the node running low on memory (memory monitor)",
            ),
        ),
        ("verl-project/verl#3453", "OpenRLHF/OpenRLHF#911", "ray: src/ray/raylet/node_manager.cc"),
        Weight.ROOT,
    ),
    Cause(
        "memory of the Slurm step",
        ("host_memory_slurm",),
        "Slurm killed the step because it used more memory than it requested",
        "Request more (`--mem`, `--mem-per-gpu`; 0 is all of a node), or "
        + _LESS_MEMORY[0].lower()
        + _LESS_MEMORY[1:],
        (
            Words(
                "slurmstepd…oom",
                "slurmstepd: error: Detected 1 oom_kill event in StepId=83.0. Some of the step "
                "tasks have been OOM Killed.",
                only=r"oom[-_ ]kill",
            ),
            Words(
                "oom-kill event(s) in …tep",
                "error: Detected 3 oom-kill event(s) in step 123.batch cgroup.",
            ),
            Words(
                "oom_kill event in StepId",
                "error: Detected 1 oom_kill event in StepId=83.0.",
            ),
            Words(
                "Exceeded step memory limit",
                "slurmstepd: error: Exceeded step memory limit at some point.",
            ),
            Words(
                "Exceeded job memory limit",
                "slurmstepd: error: Exceeded job memory limit at some point.",
            ),
            Words(
                "exceeded memory limit (",
                "slurmstepd: error: Step 12.0 exceeded memory limit (6400 > 6144), being killed",
            ),
            Words("srun: error: …Out Of Memory", "srun: error: node-3: task 4: Out Of Memory"),
            Words("^OUT_OF_MEMORY", "OUT_OF_MEMORY"),
        ),
        ("ArjunaCluster/ArjunaUsers#52", "snakemake/snakemake-executor-plugin-slurm#371"),
        Weight.ROOT,
    ),
    Cause(
        "memory of the node",
        ("host_memory_kernel",),
        "the kernel killed a process because the node or the container ran out of memory",
        _LESS_MEMORY,
        (
            Words(
                "ut of memory: Kill",
                "kernel: Out of memory: Killed process 40423 (pt_main_thread) total-vm:211904456kB",
            ),
            Words("oom-kill:constraint=", "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null)"),
            Words("invoked oom-killer", "python3 invoked oom-killer: gfp_mask=0xcc0"),
            Words(
                "oom_reaper: reaped process", "oom_reaper: reaped process 40423 (pt_main_thread)"
            ),
            Words("OOMKilled", "reason: OOMKilled"),
            Words("Killed by the OOM killer", "Killed by the OOM killer of the cgroup"),
            Words(
                "The node was low on resource: memory",
                "The node was low on resource: memory. Threshold quantity: 100Mi",
            ),
        ),
        ("xxayt/MGSV#2", "modelscope/ms-swift#1208", "linux: mm/oom_kill.c"),
        Weight.ROOT,
    ),
    Cause(
        "memory not given",
        ("host_memory_kernel",),
        "a process asked for more memory than the node or the container has left",
        _LESS_MEMORY,
        (
            Words(
                "DefaultCPUAllocator: ",
                "RuntimeError: [enforce fail at alloc_cpu.cpp:114] data. DefaultCPUAllocator: can't "
                "allocate memory: you tried to allocate 9 bytes. Error code 12",
                only="allocate memory|not enough memory",
            ),
            Words(
                "std::bad_alloc", "terminate called after throwing an instance of 'std::bad_alloc'"
            ),
            Words("^MemoryError", "MemoryError"),
            Words(
                "MemoryError: Unable to allocate",
                "numpy.core._exceptions.MemoryError: Unable to allocate 9 GiB",
            ),
            Words(
                "_ArrayMemoryError",
                "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 9 GiB",
            ),
            Words(
                "[Errno 12] Cannot allocate memory",
                "OSError: [Errno 12] Cannot allocate memory",
            ),
            Words(
                "pyarrow.lib.ArrowMemoryError",
                "pyarrow.lib.ArrowMemoryError: malloc of size 9 failed",
            ),
            Words(
                "is killed by signal: Killed",
                "RuntimeError: DataLoader worker (pid 812) is killed by signal: Killed.",
            ),
        ),
        ("pytorch: c10/core/impl/alloc_cpu.cpp", "modelscope/ms-swift#1208"),
    ),
    Cause(
        "SIGKILL",
        ("host_memory_kernel", "preempted"),
        "either a node's memory ran out, or the platform or a person ended the process (SIGKILL)",
        "Look at `dmesg` and the pod's memory for the first; "
        + _LESS_MEMORY[0].lower()
        + _LESS_MEMORY[1:],
        (
            Words(
                "(exitcode: -9)", "E0804 api.py:869] failed (exitcode: -9) local_rank: 0 (pid: 44)"
            ),
            Words("Signal 9 (SIGKILL)", "traceback : Signal 9 (SIGKILL) received by PID 44329"),
            Words("exitcode  : -9", "exitcode  : -9 (pid: 44329)"),
            Words(
                "exits with return code = -9", "[ERROR] [launch.py:321] exits with return code = -9"
            ),
            Words("Signals.SIGKILL: 9", "died with <Signals.SIGKILL: 9>."),
            Words("exit code 137", "container trainer terminated with exit code 137"),
            Words("^Killed", "Killed", only=r"^\W{0,8}(?:\S{1,40} )?Killed\W{0,8}$"),
            Words(
                "Killed",
                "/var/spool/slurmd/job1/slurm_script: line 31: 12199 Killed   torchrun train.py",
                only=r"line \d+: +\d+ Killed ",
            ),
            Words(
                "exited with signal 9",
                "srun: error: node-3: task 1: exited with signal 9",
                only="signal 9",
            ),
            Words(
                "was killed by SIGKILL",
                "A worker was killed by SIGKILL",
                unless="potential root causes",
            ),
            Words(
                "task…: Killed",
                "srun: error: node-3: task 7: Killed",
                only=r"tasks? [\d,-]+: Killed",
            ),
        ),
        ("hpcaitech/ColossalAI#3172", "meta-llama/llama#856"),
        Weight.WEAK,
    ),
)

STORAGE: tuple[Cause, ...] = (
    Cause(
        "shared memory",
        ("shm_full",),
        "/dev/shm is full or too small",
        "Give the container more (`--shm-size`, shm_size, an emptyDir of medium Memory), and remove "
        "what a killed run left: `rm /dev/shm/nccl-*`",
        (
            Words(
                "Error while creating shared memory segment",
                "shmutils.cc:112 NCCL WARN Error while creating shared memory segment "
                "/dev/shm/nccl-Uvzv1x (size 9637888)",
            ),
            Words(
                "failed to extend /dev/shm",
                "shmutils.cc:71 NCCL WARN Error: failed to extend /dev/shm/nccl-82 to 5967876 bytes",
            ),
            Words(
                "posix_fallocate failed",
                "include/shm.h:26 NCCL WARN Call to posix_fallocate failed : No space left on device",
            ),
            Words(
                "fallocate /dev/shm", "NCCL WARN fallocate /dev/shm/nccl-a failed: No space left"
            ),
            Words(
                "unable to allocate shared memory(shm)",
                "RuntimeError: unable to allocate shared memory(shm) for file </torch_1_2>: Success",
            ),
            Words(
                "unable to write to file </torch_",
                "RuntimeError: unable to write to file </torch_1_2>: No space",
            ),
            Words(
                "unable to open shared memory object </torch_",
                "RuntimeError: unable to open shared memory object </torch_9_1> in read-write mode",
                unless="Too many open files",
            ),
            Words(
                "out of shared memory",
                "RuntimeError: DataLoader worker (pid 9) is killed by signal: Bus error. It is "
                "possible that dataloader's workers are out of shared memory. Please try to raise",
                unless="resource|triton|out of resource",
            ),
            Words(
                "insufficient shared memory (shm)",
                "ERROR: Unexpected bus error encountered in worker. This might be caused by "
                "insufficient shared memory (shm).",
                mild=True,
            ),
            Words(
                "No space left on device",
                "OSError: [Errno 28] No space left on device: '/dev/shm/x'",
                only=r"/dev/shm|/psm_|torch_shm",
            ),
            Words(
                "No space left on device",
                "OSError: [Errno 28] No space left on device",
                near=r"multiprocessing/shared_memory\.py|_share_filename|shm_broadcast\.py",
            ),
            Words(
                "Failed to create shared memory",
                "RuntimeError: Failed to create shared memory segment",
            ),
        ),
        ("NVIDIA/nccl#1683", "NVIDIA/nccl#525", "NVIDIA/nccl#290", "msr-fiddle/pipedream#28"),
    ),
    Cause(
        "disk quota",
        ("disk_quota",),
        "the quota of a user or project on a file system is used up",
        "Free some of it (`quota -s`, `lfs quota`), or move checkpoints (AGENT_CHECKPOINTS) and "
        "caches (HF_HOME) to another file system",
        (
            Words(
                "Disk quota exceeded", "OSError: [Errno 122] Disk quota exceeded: '/home/u/ckpt'"
            ),
            Words("disk quota exceeded", "write /x: disk quota exceeded"),
            Words("[Errno 122]", "OSError: [Errno 122] Disk quota exceeded"),
            Words(
                "(os error 122)", "SafetensorError: I/O error: Disk quota exceeded (os error 122)"
            ),
            Words(
                "quota exceeded",
                "OSError: group block quota exceeded",
                only="(?i)(?:disk|block|group|user|file|inode).{0,12}quota exceeded",
            ),
        ),
        ("Medical-Event-Data-Standard/MEDS-DEV#266", "tloen/alpaca-lora#280"),
    ),
    Cause(
        "disk nearly full",
        ("disk_full",),
        "the disk of Ray's sessions ({disk}) is more than {most} % full: Ray spills no more objects",
        "Free it (old sessions, caches), or move Ray's sessions: AGENT_RAY_ARGS=--temp-dir=/larger",
        (
            Words(
                "% full, available space",
                "(raylet) file_system_monitor.cc:111: /tmp/ray/session_1 is over 95% full, available "
                "space: 21533786112; capacity: 527235977216. Object creation will fail if spilling "
                "is required.",
                mild=True,
            ),
        ),
        ("ray: src/ray/common/file_system_monitor.cc",),
        Weight.WEAK,
        reads=r"(?P<disk>\S{1,200}) is over (?P<most>[\d.]+)% full",
    ),
    Cause(
        "disk full",
        ("disk_full",),
        "a disk is full",
        "Look which by `df -h` and `df -i`; checkpoints belong on a volume (AGENT_CHECKPOINTS), "
        "caches too (HF_HOME)",
        (
            Words(
                "No space left on device",
                "OSError: [Errno 28] No space left on device: '/root/.cache/x'",
            ),
            Words("no space left on device", "write /var/lib/x: no space left on device"),
            Words("[Errno 28]", "OSError: [Errno 28] writing"),
            Words(
                "(os error 28)", "SafetensorError: Error while serializing: I/O error (os error 28)"
            ),
            Words(
                "code: 28, kind: StorageFull",
                "IoError(Os { code: 28, kind: StorageFull, message: 'x' })",
            ),
            Words("OutOfDiskError", "ray.exceptions.OutOfDiskError: Local disk is full"),
            Words("Local disk is full", "ray.exceptions.OutOfDiskError: Local disk is full"),
            Words(
                "Not enough free disk space to download",
                "OSError: Not enough free disk space to download the file.",
                only="Error",
            ),
            Words("ENOSPC", "Error: ENOSPC: no space left on device, write"),
            Words(
                "The node was low on resource: ephemeral-storage",
                "The node was low on resource: ephemeral-storage. Threshold quantity: 9",
            ),
        ),
        ("alpa-projects/alpa#763", "awslabs/awsome-distributed-ai#1225"),
    ),
    Cause(
        "file not written",
        ("disk_full", "disk_quota", "permission"),
        "either a disk is full, or a quota is used up, or the folder may not be written",
        "Look at `df -h`, `df -i`, `quota -s` and the rights of the folder; AGENT_CHECKPOINTS names "
        "another",
        (
            Words(
                "^RuntimeError: File …cannot be opened",
                "RuntimeError: File out/checkpoint_0.pt cannot be opened.",
            ),
            Words(
                "PytorchStreamWriter failed writing",
                "RuntimeError: [enforce fail at inline_container.cc:778] . PytorchStreamWriter failed "
                "writing file data/8: file write failed",
            ),
            Words(
                "inline_container.cc…unexpected pos",
                "RuntimeError: [enforce fail at inline_container.cc:595] . unexpected pos 64 vs 8",
            ),
            Words(
                "Parent directory…does not exist.",
                "RuntimeError: Parent directory out/x does not exist.",
            ),
        ),
        ("Sachini/ronin#51", "pytorch: caffe2/serialize/inline_container.cc"),
        Weight.WEAK,
    ),
)
