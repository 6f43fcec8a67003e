"""Causes in the machine: GPUs, memory, threads, files, disks."""

from __future__ import annotations

from agent.decisions.remedies.row import Remedy

MACHINE: tuple[Remedy, ...] = (
    Remedy(
        "NVML",
        r"Failed to initialize NVML: (?P<why>[\w /]+)",
        "the container lost its GPUs (NVML: {why})",
        "Restart the pod or container; if it comes back, change the machine",
        signs=("Failed to initialize NVML",),
    ),
    Remedy(
        "Xid",
        r"NVRM: Xid [^:]*:[^:]*:[^:]*: (?P<number>\d+)|GPU has fallen off the bus",
        "a GPU reported a fault of its own (Xid {number})",
        "Change the machine",
    ),
    Remedy(
        "HIP and CUDA",
        r"Inconsistant values found\. Please use either HIP_VISIBLE_DEVICES or CUDA",
        "two variables choose AMD GPUs in two ways",
        "Choose them by HIP_VISIBLE_DEVICES alone, before the agent starts",
        signs=("Inconsistant values found",),
    ),
    Remedy(
        "ROCR",
        r"(?:use|unset).{0,40}ROCR_VISIBLE_DEVICES|ROCR_VISIBLE_DEVICES.{0,60}(?:use|unset"
        r"|conflict)",
        "ROCR_VISIBLE_DEVICES is set inside the job, which Ray or the framework refuses",
        "Unset it there, and choose AMD GPUs by HIP_VISIBLE_DEVICES",
    ),
    Remedy(
        "GPU memory",
        r"CUDA out of memory|HIP out of memory|torch\.OutOfMemoryError|CUDA error: out of memory",
        "a GPU ran out of memory",
        "Take a smaller micro batch or context, a lower gpu_memory_utilization of the rollout "
        "engine, more GPUs, or offloading",
        signs=(
            "OutOfMemoryError: CUDA out",
            "OutOfMemoryError: HIP out",
            "RuntimeError: CUDA out of memory",
            "CUDA error: out of memory",
        ),
    ),
    Remedy(
        "GPU older than torch",
        r"no kernel image is available for execution on the device",
        "this torch was not built for this kind of GPU",
        "Take an image whose torch knows the GPU",
        signs=("no kernel image is available for execution",),
    ),
    Remedy(
        "driver older than CUDA",
        r"CUDA driver version is insufficient|NVIDIA driver on your system is too old",
        "the host's NVIDIA driver is older than the image's CUDA",
        "Choose hosts with a newer driver, or an image with an older CUDA",
        signs=(
            "CUDA driver version is insufficient",
            "NVIDIA driver on your system is too old",
        ),
    ),
    Remedy(
        "memory",
        r"(?:Task was|worker\(s\) were) killed due to the node running low on memory"
        r"|[1-9]\d* Workers \(tasks / actors\) killed due to memory pressure",
        "a node ran out of memory, and Ray killed a worker on it",
        "Give the pods more memory, or the job less to hold: fewer loader workers, less "
        "offloading, "
        "a smaller replay or rollout batch",
        signs=(
            "Task was killed due to the node running low",
            "killed due to memory pressure",
        ),
    ),
    Remedy(
        "threads",
        r"pthread_create failed: Resource temporarily unavailable|can't start new thread"
        r"|fork: retry: Resource temporarily unavailable",
        "no room for another thread or process (pids.max or `ulimit -u`)",
        "Raise it (`--pids-limit`, `ulimit -u`), or start fewer: "
        "RAY_worker_num_grpc_internal_threads"
        "=1, OMP_NUM_THREADS=1, AGENT_NUM_CPUS below the number of cores",
        signs=(
            "pthread_create failed",
            "RuntimeError: can't start new thread",
            "fork: retry: Resource",
        ),
    ),
    Remedy(
        "open files",
        r"Failed accept4: Too many open files|\[Errno 24\] Too many open files|Too many open files",
        "the limit of open files is reached",
        "Raise the hard limit of the container: `--ulimit nofile=1048576:1048576`",
        signs=(
            "Failed accept4: Too many open files",
            "[Errno 24] Too many open files",
        ),
    ),
    Remedy(
        "shared memory",
        r"Error while creating shared memory segment /dev/shm/nccl|posix_fallocate failed"
        r"|unable to (?:write|open shared memory) .{0,60}/?torch_|Bus error.{0,80}shared memory",
        "/dev/shm is full or too small",
        "Give the container more (`--shm-size`, shm_size, an emptyDir of medium Memory), and "
        "remove "
        "what a killed run left: `rm /dev/shm/nccl-*`",
        signs=(
            "Error while creating shared memory segment",
            "posix_fallocate failed",
        ),
    ),
    Remedy(
        "object store on disk",
        r"The object store is using (?P<where>\S+) instead of /dev/shm",
        "/dev/shm is too small, so that Ray keeps its objects on disk ({where})",
        "Give the container more: `--shm-size`, shm_size, an emptyDir of medium Memory",
    ),
    Remedy(
        "disk nearly full",
        r"(?P<disk>\S+) is over (?P<most>\d+)% full",
        "the disk of Ray's sessions ({disk}) is more than {most} % full: Ray spills no more "
        "objects",
        "Free it (old sessions, caches), or move Ray's sessions: AGENT_RAY_ARGS=--temp-dir=/larger",
        signs=("% full, available space",),
    ),
    Remedy(
        "disk full",
        r"\[Errno 28\]|No space left on device",
        "a disk is full",
        "Look which by `df -h` and `df -i`; checkpoints belong on a volume (AGENT_CHECKPOINTS), "
        "caches too (HF_HOME)",
        signs=("[Errno 28] No space left",),
    ),
)
