"""Rows for limits, access, nodes that were taken away, and crashes."""

from __future__ import annotations

from agent.decisions.causes.row import Cause, Weight, Words

LIMITS: tuple[Cause, ...] = (
    Cause(
        "threads",
        ("threads",),
        "no room for another thread or process (pids.max or `ulimit -u`)",
        "Raise it (`--pids-limit`, `ulimit -u`), or start fewer: "
        "RAY_worker_num_grpc_internal_threads=1, OMP_NUM_THREADS=1, AGENT_NUM_CPUS below the number "
        "of cores",
        (
            Words(
                "pthread_create failed", "pthread_create failed: Resource temporarily unavailable"
            ),
            Words(
                "pthread_create: Resource",
                "OpenBLAS blas_thread_init: pthread_create: Resource temporarily unavailable",
            ),
            Words("pthread_create() failed", "pthread_create() failed (11)"),
            Words(
                "blas_thread_init: pthread_create",
                "OpenBLAS blas_thread_init: pthread_create failed for thread 9",
            ),
            Words("RuntimeError: can't start new thread", "RuntimeError: can't start new thread"),
            Words(
                "fork: retry: Resource",
                "bash: fork: retry: Resource temporarily unavailable",
                mild=True,
            ),
            Words("fork: Resource temporarily", "bash: fork: Resource temporarily unavailable"),
            Words(
                "thread: Resource temporarily unavailable",
                "what(): thread: Resource temporarily unavailable [system:11]",
            ),
            Words("what():  Resource temporarily", "what():  Resource temporarily unavailable"),
            Words(
                "boost::thread_resource_error", "boost::thread_resource_error: Resource temporarily"
            ),
            Words(
                "Thread creation failed: Resource",
                "libgomp: Thread creation failed: Resource temporarily unavailable",
            ),
            Words(
                "unable to allocate necessary resources for OMP thread",
                "OMP: Error #34: System unable to allocate necessary resources for OMP thread:",
            ),
            Words(
                "failed to create new OS thread",
                "runtime: failed to create new OS thread (have 5 already; errno=11)",
            ),
            Words(
                "BlockingIOError: [Errno 11] Resource temp",
                "BlockingIOError: [Errno 11] Resource temporarily unavailable",
                near=r"fork|Popen|subprocess|popen_fork",
            ),
            Words("Cannot fork", "OSError: Cannot fork", only="Cannot fork$|Resource"),
            Words(
                "hreadPoolBuildError",
                "ThreadPoolBuildError { kind: IOError(Os { code: 11, kind: WouldBlock",
            ),
        ),
        (
            "verl-project/verl#472",
            "verl-project/verl#719",
            "vllm-project/vllm#5645",
            "ray-project/ray#44296",
            "OpenMathLib/OpenBLAS#1767",
        ),
    ),
    Cause(
        "open files",
        ("open_files",),
        "the limit of open files is reached",
        "Raise the hard limit of the container: `--ulimit nofile=1048576:1048576`",
        (
            Words("Failed accept4: Too many open files", "Failed accept4: Too many open files"),
            Words("[Errno 24]", "OSError: [Errno 24] Too many open files: '/tmp/x'"),
            Words(
                "Too many open files",
                "RuntimeError: unable to open shared memory object </torch_1>: Too many open files",
            ),
            Words(
                "too many open files",
                "accept tcp [::]:80: accept4: too many open files",
                only=r"(?i)(?:accept|socket|open \S+|dial|pipe)\d?: .*too many open files",
            ),
            Words("(os error 24)", "Too many open files (os error 24)"),
            Words("items of ancdata", "RuntimeError: received 0 items of ancdata"),
        ),
        (
            "facebookresearch/maskrcnn-benchmark#158",
            "pytorch/pytorch#34768",
            "ray-project/kuberay#4860",
        ),
    ),
    Cause(
        "port taken",
        ("port_taken",),
        "another process already listens on a port that the job or a service needs",
        "End it (`ss -ltnp` names it), or choose another port",
        (
            Words("[Errno 98]", "OSError: [Errno 98] Address already in use"),
            Words(
                "[Errno 48] Address already in use", "OSError: [Errno 48] Address already in use"
            ),
            Words(
                "EADDRINUSE",
                "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, errno: EADDRINUSE",
            ),
            Words(
                "errno: 98",
                "[W socket.cpp:464] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).",
            ),
            Words("^RuntimeError: Address already in use", "RuntimeError: Address already in use"),
            Words(
                "ddress already in use",
                "zmq.error.ZMQError: Address already in use (addr='tcp://10.0.0.1:5557')",
                only=r"(?:Error|error|rror:|Exception|bind|listen|failed|ERROR).{0,200}ddress already in use",
            ),
            Words(
                "server socket has failed to listen on any local network address",
                "RuntimeError: The server socket has failed to listen on any local network address.",
            ),
            Words(
                "ort …is already in use",
                "RuntimeError: Port 8265 is already in use",
                only=r"[Pp]ort \d+ is already in use",
            ),
        ),
        ("vllm-project/vllm#11617", "vllm-project/vllm#15987", "verl-project/verl#5889"),
    ),
)

ACCESS: tuple[Cause, ...] = (
    Cause(
        "permission",
        ("permission",),
        "a file or folder may not be read or written ({path})",
        "Give its owner to the job's user, or name another folder: HF_HOME and TRITON_CACHE_DIR for "
        "caches, AGENT_CHECKPOINTS for checkpoints; HOME must be a folder that can be written",
        (
            Words("[Errno 13]", "PermissionError: [Errno 13] Permission denied: '/.cache'"),
            Words("(os error 13)", "Permission denied (os error 13)"),
            Words(
                "PermissionError: ", "PermissionError: [Errno 1] Operation not permitted: '/data/x'"
            ),
            Words(
                "Read-only file system",
                "OSError: [Errno 30] Read-only file system: '/models/x.lock'",
            ),
            Words(
                ": Permission denied",
                "mkdir: cannot create directory '/ckpt': Permission denied",
                only=r"cannot|failed|unable|[Ee]rror|line \d+|^sh|^bash",
                unless="publickey|ssh",
            ),
            Words("EACCES", "EACCES: permission denied, mkdir '/x'"),
        ),
        (
            "opendatahub-io/ilab-on-ocp#26",
            "triton-inference-server/server#7015",
            "dphnAI/sonar#458",
        ),
        reads=r"(?P<path>/[^'\":]{1,120})",
    ),
    Cause(
        "certificate",
        ("certificate",),
        "a TLS certificate cannot be verified",
        "Install the certificate of your proxy or authority in the image, and name it in "
        "REQUESTS_CA_BUNDLE and SSL_CERT_FILE; look at the clock",
        (
            Words(
                "CERTIFICATE_VERIFY_FAILED",
                "requests.exceptions.SSLError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /x (Caused by SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed",
            ),
            Words(
                "certificate verify failed",
                "SSLError: certificate verify failed: certificate has expired",
            ),
            Words(
                "SSLCertVerificationError", "ssl.SSLCertVerificationError: self-signed certificate"
            ),
            Words(
                "x509: certificate",
                "tls: failed to verify certificate: x509: certificate signed by unknown authority",
            ),
            Words(
                "certificate has expired",
                "curl: (60) SSL certificate problem: certificate has expired",
            ),
            Words(
                "SSL certificate problem",
                "curl: (60) SSL certificate problem: unable to get local issuer certificate",
            ),
            Words(
                "suitable TLS CA certificate bundle",
                "OSError: Could not find a suitable TLS CA certificate bundle, invalid path: /x.pem",
            ),
            Words(
                "invalid peer certificate",
                "error sending request: invalid peer certificate: UnknownIssuer",
            ),
        ),
        ("stitionai/devika#446", "docling-project/docling#1432"),
    ),
)

TAKEN: tuple[Cause, ...] = (
    Cause(
        "time limit",
        ("time_limit",),
        "the scheduler's time limit ended the job",
        "Ask for more time (`--time`), or save checkpoints often enough to resume",
        (
            Words(
                "DUE TO TIME LIMIT",
                "slurmstepd: error: *** JOB 87 ON node-1 CANCELLED AT 2025-02-13T05:10:27 DUE TO TIME LIMIT ***",
            ),
            Words(
                "due to time limit",
                "JOB 87 CANCELLED due to time limit",
                only="(?i)cancel|job|step",
            ),
            Words("TERM_RUNLIMIT", "TERM_RUNLIMIT: job killed after reaching LSF run time limit."),
            Words("job killed: walltime", "=>> PBS: job killed: walltime 3610 exceeded limit 3600"),
            Words(
                "DeadlineExceeded",
                "reason: DeadlineExceeded",
                unless="DEADLINE_EXCEEDED|rpc|RPC|grpc|Error",
                mild=True,
            ),
            Words(
                "was active longer than specified deadline",
                "Job was active longer than specified deadline",
            ),
            Words("exceeded its time limit", "job 12 has exceeded its time limit"),
        ),
        (
            "desihub/desitarget#628",
            "Nextomics/NextPolish#122",
            "slurm: src/slurmd/slurmstepd/req.c",
        ),
        Weight.ROOT,
    ),
    Cause(
        "preempted",
        ("preempted",),
        "the platform or scheduler took a node away",
        "Submit again; on spot machines save checkpoints often, and set AGENT_JOB_RETRIES",
        (
            Words(
                "preempted: ",
                "the actor's node was preempted: Node was forcibly preempted",
                only="node",
            ),
            Words(
                "terminated expectedly: received SIGTERM",
                "the actor's node was terminated expectedly: received SIGTERM",
            ),
            Words(
                "termination is imminent",
                "GCP Metadata Service says termination is imminent",
                mild=True,
            ),
            Words("pot Instance terminated", "Spot Instance terminated: no capacity", mild=True),
            Words("forcibly preempted", "Node was forcibly preempted"),
            Words(
                "DUE TO PREEMPTION",
                "slurmstepd: error: *** JOB 8 ON n CANCELLED AT 2025-01-01T00:00:00 DUE TO PREEMPTION ***",
            ),
            Words(
                "DUE TO JOB REQUEUE",
                "slurmstepd: error: *** JOB 8 ON n CANCELLED AT 2025-01-01T00:00:00 DUE TO JOB REQUEUE ***",
            ),
            Words(
                "due to preemption",
                "job 12 was cancelled due to preemption",
                only="(?i)job|pod|node|instance|cancel|terminat",
            ),
            Words(
                "pot Instance interruption",
                "EC2 Spot Instance interruption notice received",
                mild=True,
            ),
            Words(
                "pot interruption",
                "Received spot interruption notice: terminating in 2 minutes",
                mild=True,
            ),
            Words("nstance is being preempted", "The instance is being preempted", mild=True),
            Words("nstance was preempted", "instance was preempted by Compute Engine", mild=True),
            Words(
                "nstance-action",
                '{"action": "terminate", "time": "x"} from spot/instance-action',
                mild=True,
            ),
            Words("TerminationByKubelet", "TerminationByKubelet: Pod was terminated", mild=True),
            Words(
                "terminated in response to imminent node shutdown",
                "Pod was terminated in response to imminent node shutdown.",
                mild=True,
            ),
            Words("PreemptionByScheduler", "reason: PreemptionByScheduler", mild=True),
            Words(
                "preempting to accommodate a higher priority pod",
                "default-scheduler: preempting to accommodate a higher priority pod",
                mild=True,
            ),
            Words(
                "reempted by ",
                "Preempted by pod a1 on node n7",
                only="(?i)pod|job|node|instance",
                unless="PreemptionMode",
                mild=True,
            ),
            Words("preemption notice", "received a preemption notice from the platform", mild=True),
            Words(
                "AUTOSCALER_DRAIN_REASON_PREEMPTION",
                "DRAIN_NODE_REASON_PREEMPTION AUTOSCALER_DRAIN_REASON_PREEMPTION",
                mild=True,
            ),
            Words(
                "DRAIN_NODE_REASON_PREEMPTION",
                "drain reason: DRAIN_NODE_REASON_PREEMPTION",
                mild=True,
            ),
        ),
        (
            "ray-project/ray#41107",
            "slurm: src/slurmd/slurmstepd/req.c",
            "kubernetes: pod disruption conditions",
        ),
        Weight.ROOT,
    ),
    Cause(
        "node lost",
        ("node_lost",),
        "a node stopped answering",
        "Look whether the platform stopped or restarted it, and at its last logs; Ray's head and the "
        "node must reach each other on all of Ray's ports",
        (
            Words(
                "has been marked dead because the detector",
                "WARNING worker.py:2037 -- The node with node id: 6e71 and address: 10.0.0.7 and node name: x has been marked dead because the detector has missed too many heartbeats from it.",
                mild=True,
            ),
            Words(
                "actor died because its node has died",
                "The actor died because its node has died. Node Id: a3da",
            ),
            Words(
                "node has died",
                "ray.exceptions.NodeDiedError: Task failed because the node has died",
                only="NodeDied|Error|died because",
            ),
            Words("NodeDiedError", "ray.exceptions.NodeDiedError: x"),
            Words(
                "health check failed due to missing too many heartbeats",
                "the actor's node was terminated unexpectedly: health check failed due to missing too many heartbeats",
            ),
            Words(
                "DUE TO NODE FAILURE",
                "slurmstepd: error: *** JOB 8 ON n CANCELLED AT 2025-01-01T00:00:00 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***",
            ),
            Words("srun: error: Node failure on", "srun: error: Node failure on node-7"),
            Words("NodeLost", "reason: NodeLost", mild=True),
            Words("Node is not ready", "Warning NodeNotReady: Node is not ready", mild=True),
        ),
        ("ray-project/ray#44680", "ray-project/ray#58638", "ray-project/kuberay#3827"),
        Weight.WEAK,
    ),
    Cause(
        "marked dead",
        ("node_lost",),
        "a node missed its health checks: overloaded, frozen, or not reached by the head",
        "Open the node manager's port from head to workers (AGENT_PORT + 1); for slow nodes raise "
        "RAY_health_check_failure_threshold and RAY_health_check_timeout_ms on the head",
        (
            Words(
                "mistakenly been marked as dead",
                "Exiting because this node manager has mistakenly been marked as dead by the GCS: GCS failed to check the health of this node for 5 times.",
            ),
        ),
        ("ray-project/ray#54035", "ray-project/ray#59193"),
        Weight.WEAK,
    ),
)

CRASHES: tuple[Cause, ...] = (
    Cause(
        "crash",
        ("native_crash",),
        "a process crashed in compiled code ({what})",
        "Look at the stack above the line; PYTHONFAULTHANDLER=1 prints one; other versions of torch, "
        "NCCL or the engine often help; on one node only, change the machine",
        (
            Words(
                "Fatal Python error: Segmentation fault", "Fatal Python error: Segmentation fault"
            ),
            Words("Segfault encountered", "!!!!!!! Segfault encountered !!!!!!!"),
            Words(
                "Floating point exception (core",
                "line 3: 812 Floating point exception (core dumped) python x.py",
            ),
            Words("pure virtual method called", "pure virtual method called"),
            Words(
                "egmentation fault",
                "bash: line 1: 812 Segmentation fault (core dumped) python train.py",
            ),
            Words("*** SIGSEGV", "*** SIGSEGV received at time=1745990000 on cpu 71 ***"),
            Words("Signal 11 (SIGSEGV)", "traceback : Signal 11 (SIGSEGV) received by PID 5341"),
            Words(
                "(exitcode: -11)",
                "E0527 api.py:869] failed (exitcode: -11) local_rank: 3 (pid: 5341)",
            ),
            Words("exits with return code = -11", "[launch.py:321] exits with return code = -11"),
            Words("Signals.SIGSEGV", "died with <Signals.SIGSEGV: 11>."),
            Words("Signal 7 (SIGBUS)", "traceback : Signal 7 (SIGBUS) received by PID 44"),
            Words("Signal 4 (SIGILL)", "traceback : Signal 4 (SIGILL) received by PID 44"),
            Words("Signal 8 (SIGFPE)", "traceback : Signal 8 (SIGFPE) received by PID 44"),
            Words("Signals.SIGILL", "died with <Signals.SIGILL: 4>."),
            Words(
                "Illegal instruction", "line 3: 812 Illegal instruction (core dumped) python x.py"
            ),
            Words(
                "Fatal Python error: Illegal instruction", "Fatal Python error: Illegal instruction"
            ),
            Words("Fatal Python error: Bus error", "Fatal Python error: Bus error"),
            Words("Bus error (core dumped)", "line 3: 812 Bus error (core dumped) python x.py"),
            Words("double free or corruption", "double free or corruption (!prev)"),
            Words("free(): invalid", "free(): invalid pointer"),
            Words("free(): double free", "free(): double free detected in tcache 2"),
            Words("munmap_chunk(): invalid pointer", "munmap_chunk(): invalid pointer"),
            Words("corrupted size vs. prev_size", "corrupted size vs. prev_size"),
            Words(
                "malloc(): ",
                "malloc(): invalid size (unsorted)",
                only=r"malloc\(\): (?:invalid|corrupt|unaligned|mismatch|memory)",
            ),
            Words("corrupted double-linked list", "corrupted double-linked list"),
            Words("stack smashing detected", "*** stack smashing detected ***: terminated"),
            Words(
                "Caught signal 11 (Segmentation",
                "Caught signal 11 (Segmentation fault: address not mapped",
            ),
            Words("exited with signal 11", "srun: error: node-3: task 1: exited with signal 11"),
            Words("exit code 139", "container trainer terminated with exit code 139"),
        ),
        ("verl-project/verl#1329", "vllm-project/vllm#38529", "Agent-RL/ReCall#62"),
        Weight.WEAK,
        reads=r"(?P<what>Segmentation fault|SIG[A-Z]+|Illegal instruction|Bus error|double free|free\(\)|malloc\(\)|stack smashing|-11)",
    ),
    Cause(
        "abort",
        ("native_crash",),
        "a process aborted in compiled code (SIGABRT)",
        "Look at the stack and the lines above it",
        (
            Words("Fatal Python error: Aborted", "Fatal Python error: Aborted"),
            Words("Aborted (core dumped)", "Aborted (core dumped)"),
            Words("*** SIGABRT", "*** SIGABRT received at time=1745990000 on cpu 71 ***"),
            Words("Signal 6 (SIGABRT)", "traceback : Signal 6 (SIGABRT) received by PID 3085"),
            Words(
                "(exitcode: -6)",
                "failed (exitcode: -6) local_rank: 0 (pid: 3085) of binary: python",
            ),
            Words("exits with return code = -6", "[launch.py:321] exits with return code = -6"),
            Words("Signals.SIGABRT", "died with <Signals.SIGABRT: 6>."),
        ),
        ("pytorch: torch/distributed/elastic/multiprocessing/api.py",),
        Weight.LAST,
        is_live=False,
    ),
    Cause(
        "actor without a word",
        ("native_crash", "host_memory_kernel"),
        "a worker process of Ray ended without a word: either it crashed in compiled code, or the "
        "node's memory ran out and the kernel killed it",
        "Look at `dmesg` on its node, and at the end of the worker's own log "
        "(python-core-worker-*.log and worker-*.err in Ray's session)",
        (
            Words(
                "Worker unexpectedly exits with a connection error",
                "Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file.",
            ),
            Words(
                "WorkerCrashedError",
                "ray.exceptions.WorkerCrashedError: The worker died unexpectedly while executing this task.",
            ),
            Words(
                "died unexpectedly before finishing this task",
                "ray.exceptions.RayActorError: The actor died unexpectedly before finishing this task.",
            ),
            Words(
                "killed while executing a task by an unexpected system error",
                "(raylet) A worker died or was killed while executing a task by an unexpected system error.",
            ),
        ),
        ("zhaochenyang20/Awesome-ML-SYS-Tutorial#106", "NovaSky-AI/SkyRL#356"),
        Weight.LAST,
        is_live=False,
    ),
)
