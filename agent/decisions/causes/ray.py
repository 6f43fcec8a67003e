"""Rows for Ray itself: room for the job, its start, and lines that mean nothing."""

from __future__ import annotations

from agent.decisions.causes.row import Cause, Weight, Words

PLACEMENT: tuple[Cause, ...] = (
    Cause(
        "too few GPUs",
        ("placement",),
        "the job wants {wants} GPUs, and Ray has {has}",
        "Correct the job's nnodes and GPUs per node, or EXPECTED_WORKERS, so that all have joined",
        (
            Words(
                "is less than total desired GPUs",
                "ValueError: Total available GPUs 8.0 is less than total desired GPUs 16",
            ),
        ),
        ("verl-project/verl#2515", "verl-project/verl#746"),
        reads=r"GPUs (?P<has>[\d.]+) is less than total desired GPUs (?P<wants>[\d.]+)",
    ),
    Cause(
        "no such resource",
        ("placement",),
        "no node of Ray has what the job asks for ({asked})",
        "Compare with `pod-agent status`: GPUs that Ray does not see are counted by AGENT_NUM_GPUS",
        (
            Words(
                "No available node types can fulfill resource request",
                "(autoscaler) Error: No available node types can fulfill resource request {'GPU': 1.0}. Add suitable node types",
                mild=True,
            ),
            Words(
                "could not find a node type to satisfy",
                "WARNING resource_demand_scheduler.py:731 -- The autoscaler could not find a node type to satisfy the request: [{'GPU': 8.0}].",
                mild=True,
            ),
            Words(
                "cannot be scheduled right now",
                "Warning: The following resource request cannot be scheduled right now: {'GPU': 1.0}.",
                only=r"\{",
                mild=True,
            ),
            Words(
                "cannot be satisfied in this ray cluster",
                "ValueError: Resource pool global_pool: 8*2 cannot be satisfied in this ray cluster",
            ),
        ),
        ("ray-project/ray#45302", "ray-project/ray#20968"),
        reads=r"(?P<asked>\{[^}]*\})",
    ),
    Cause(
        "placement",
        ("placement",),
        "the cluster has too few GPUs or CPUs for the placement group that the job asks for",
        "Compare `ray status` with the job's GPUs (and CPUs: one to three for each GPU) on each node; "
        "look for actors of an earlier job that still hold them",
        (
            Words(
                "Cannot provide a placement group",
                "ValueError: Cannot provide a placement group of placement_group_specs=[{'GPU': 1.0}] within 1800 seconds.",
            ),
            Words(
                "lacement group was not ready",
                "TimeoutError: Placement group was not ready within 1800 s",
            ),
            Words(
                "lacement group…cannot be",
                "PlacementGroupSchedulingError: Placement group x cannot be scheduled",
                only="(?i)schedul|created|provid|fulfil",
            ),
            Words(
                "lacement group",
                "ray.exceptions.GetTimeoutError: placement group not ready after 600 s",
                error=True,
                only=r"(?i)placement group.{0,160}(?:time|not ready|within|infeasible|exceed|fail|unable|cannot|insufficient|not enough)",
            ),
            Words(
                "exceeds the total number of available GPUs",
                "ValueError: The number of required GPUs exceeds the total number of available GPUs in the placement group.",
            ),
            Words(
                "exceeds the total number of available",
                "ValueError: The number of required TPUs exceeds the total number of available TPUs in the placement group.",
            ),
            Words(
                "does not allocate any GPUs on the driver node",
                "ValueError: Ray does not allocate any GPUs on the driver node.",
            ),
            Words(
                "Current node has no GPU available",
                "ValueError: Current node has no GPU available. current_node_resource={'CPU': 8.0}.",
            ),
            Words(
                "ActorUnschedulableError",
                "ray.exceptions.ActorUnschedulableError: The actor is not schedulable: x",
            ),
            Words(
                "TaskUnschedulableError",
                "ray.exceptions.TaskUnschedulableError: The task is not schedulable: x",
            ),
            Words("PlacementGroupSchedulingError", "PlacementGroupSchedulingError: x"),
            Words(
                "odes are available: ",
                "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
                only="(?i)insufficient",
                mild=True,
            ),
            Words(
                "Requested node configuration is not available",
                "srun: error: Unable to allocate resources: Requested node configuration is not available",
            ),
            Words(
                "ailed to create placement group",
                "RuntimeError: Failed to create placement group with 8 bundles (requiring 8 GPUs, 8 CPUs total) in 180 seconds.",
            ),
            Words(
                "ResourceInsufficientError",
                "ResourceInsufficientError: Maximum number of retries reached (6). Cluster resources may be insufficient",
            ),
            Words(
                "GPU",
                "ValueError: Requested 16 GPUs but only 8 are available in the Ray cluster",
                error=True,
                only=r"(?i)(?:request|requir|need|want|ask)\w*.{0,60}\bgpus?\b.{0,80}\b(?:but|only|exceed|more than|available|has|have)\b.{0,60}(?:cluster|ray|total|available)",
            ),
            Words(
                "nsufficient",
                "ValueError: Insufficient GPUs: 8 requested, 4 in the cluster",
                error=True,
                only=r"(?i)insufficient (?:gpu|cpu|resource)",
            ),
            Words(
                "ot enough",
                "ValueError: Not enough GPUs in the cluster: 16 > 8",
                error=True,
                only=r"(?i)not enough (?:gpu|cpu|resource|nodes|available gpu)",
            ),
        ),
        (
            "verl-project/verl#746",
            "vllm-project/vllm#13093",
            "vllm-project/vllm#26028",
            "vllm-project/vllm#6956",
        ),
    ),
    Cause(
        "placement waits",
        ("placement",),
        "a placement group waits for GPUs or CPUs that the cluster does not have",
        "Compare `ray status` with the job's GPUs (and CPUs: one to three for each GPU) on each node; "
        "look for actors of an earlier job that still hold them",
        (
            Words(
                "pending placement groups",
                " {'CPU': 1.0, 'GPU': 1.0} * 8 (PACK): 1+ pending placement groups",
                mild=True,
            ),
            Words(
                "Waiting for creating a placement group",
                "INFO ray_utils.py:231 Waiting for creating a placement group of specs for 40 seconds. specs=[{'GPU': 1.0}].",
                mild=True,
            ),
            Words(
                "arallel size (…exceeds available GPUs",
                "WARNING 03-30 14:11:45 [ray_utils.py:352] Tensor parallel size (16) exceeds available GPUs (8). This may result in Ray placement group allocation failures.",
                mild=True,
            ),
            Words("pending tasks/actors", " {'GPU': 1.0}: 1+ pending tasks/actors", mild=True),
        ),
        ("vllm-project/vllm#13093",),
        Weight.LAST,
        is_live=False,
    ),
    Cause(
        "node address",
        (),
        "a process took {ip} for its node's address, which Ray does not know, or its raylet ended",
        "Set AGENT_NODE_IP to the address between the nodes; if it is that already, raylet.out says "
        "why Ray ended",
        (
            Words(
                "and Ray expects this IP address",
                "RuntimeError: This node has an IP address of 192.168.67.2, and Ray expects this IP address to be either the GCS address or one of the Raylet addresses.",
            ),
        ),
        ("ray-project/ray#35022", "ray-project/ray#42514"),
        Weight.WEAK,
        reads=r"an IP address of (?P<ip>[\w.:]+)",
    ),
)

START: tuple[Cause, ...] = (
    Cause(
        "object store on disk",
        (),
        "/dev/shm is too small, so that Ray keeps its objects on disk ({where})",
        "Give the container more: `--shm-size`, shm_size, an emptyDir of medium Memory",
        (
            Words(
                "The object store is using …instead of /dev/shm",
                "WARNING services.py:2009 -- WARNING: The object store is using /tmp instead of /dev/shm because /dev/shm has only 67108864 bytes available.",
                mild=True,
            ),
        ),
        ("ray: python/ray/_private/services.py",),
        Weight.LAST,
        reads=r"is using (?P<where>\S+) instead",
        is_live=False,
        of_ray=True,
    ),
    Cause(
        "local address",
        (),
        "a service was told to listen on, or to come from, an address that this node does not have, "
        "or the kernel ran out of outgoing ports",
        "Unset AGENT_NODE_IP, or choose one of the addresses that `pod-agent doctor` shows",
        (
            Words(
                "Cannot assign requested address",
                "(raylet) runtime_env_agent_client.cc:336: Runtime Env Agent timed out in 30000ms. Status: NotFound: on_connect Cannot assign requested address, address: 10.102.238.21, port: 57360",
                mild=True,
            ),
        ),
        ("ray: src/ray/raylet/runtime_env_agent_client.cc",),
        Weight.WEAK,
        is_live=False,
    ),
    Cause(
        "GCS lost",
        (),
        "Ray's GCS on the head was gone for too long",
        "Look at the head: its agent.log, gcs_server.out, and whether its memory ran out",
        (
            Words(
                "Failed to connect to GCS within",
                "gcs_rpc_client.h:554: Failed to connect to GCS within 60 seconds. GCS may have been killed.",
            ),
        ),
        ("ray-project/kuberay#1141", "ray-project/kuberay#3897"),
        Weight.WEAK,
    ),
    Cause(
        "GCS not reached",
        (),
        "GCS does not answer at {where}: not there yet, or its port is closed",
        "Open Ray's port (AGENT_RAY_PORT, 6379) on the head for the workers",
        (
            Words(
                "Unable to connect to GCS at ",
                "WARNING utils.py:1397 -- Unable to connect to GCS at 10.0.53.19:49650. Check that (1) Ray GCS with matching version started successfully at the specified address",
                mild=True,
            ),
        ),
        ("ray-project/kuberay#973",),
        Weight.LAST,
        reads=r"to GCS at (?P<where>\S+?)\.?(?:\s|$)",
        is_live=False,
        of_ray=True,
    ),
    Cause(
        "session",
        (),
        "an older GCS, or a Redis behind it, owns Ray's port",
        "End it (`ray stop --force` on that machine), or move ours: AGENT_RAY_PORT",
        (
            Words(
                "Session name …does not match persisted value",
                "AssertionError: Session name session_2024-08-01_1 does not match persisted value session_2024-07-31_9.",
            ),
        ),
        ("OpenRLHF/OpenRLHF#415",),
        is_live=False,
    ),
    Cause(
        "running already",
        (),
        "another Ray runs on this machine, or left its address file behind",
        "End it (`ray stop --force`), or move ours: AGENT_RAY_PORT, AGENT_PORT",
        (
            Words(
                "Ray is trying to start at …but is already running",
                "ConnectionError: Ray is trying to start at 10.0.0.5:6379, but is already running at 10.0.0.9:6379. Please specify a different port",
            ),
        ),
        ("ray-project/ray#27021",),
        is_live=False,
    ),
    Cause(
        "ports collide",
        ("port_taken",),
        "Ray's ports collide with each other, or with the ports that the kernel gives away",
        "Move ours by AGENT_PORT and AGENT_RAY_PORT; keep them out of ip_local_port_range",
        (
            Words(
                "Ray component …is trying to use a port number",
                "ValueError: Ray component worker_ports is trying to use a port number 10012 that is used by other components.",
            ),
            Words(
                "No available ports",
                "RuntimeError: No available ports. Please specify a wider port range",
            ),
        ),
        ("NVIDIA-NeMo/RL#261", "NVIDIA-NeMo/RL#951"),
    ),
    Cause(
        "registration",
        (),
        "Ray's workers started too slowly (a slow disk or image), or they ended at their start",
        "Raise RAY_worker_register_timeout_seconds (60) on every node; python-core-worker-*.log says "
        "whether they ended",
        (
            Words(
                "have not registered …within",
                "(raylet) worker_pool.cc:586: Some workers of the worker process(27991) have not registered within the timeout. The process is dead, probably it crashed during start.",
                only="timeout",
                mild=True,
            ),
        ),
        ("ray: src/ray/raylet/worker_pool.cc",),
        Weight.LAST,
        is_live=False,
    ),
    Cause(
        "runtime env agent",
        (),
        "Ray's runtime_env agent did not answer in time, and Ray ended with it",
        "Look at runtime_env_agent.log: mostly an address that is not this node's, or no memory",
        (
            Words(
                "exited immediately because the runtime env agent timed out",
                "(raylet) runtime_env_agent_client.cc:292: The raylet exited immediately because the runtime env agent timed out when Raylet try to connect to it.",
            ),
        ),
        ("ray: src/ray/raylet/runtime_env_agent_client.cc",),
        Weight.WEAK,
        is_live=False,
    ),
    Cause(
        "job supervisor",
        (),
        "Ray found no room for the job's own driver",
        "Ask for no resources of the entrypoint; look whether the head has free CPUs and memory",
        (
            Words(
                "Job supervisor actor failed to start within",
                "Job supervisor actor failed to start within 900.0 seconds",
            ),
        ),
        ("ray-project/ray#41437",),
        is_live=False,
    ),
    Cause(
        "dashboard agent",
        (),
        "the dashboard's agent on the head is not up, or a limit ended it",
        "If it stays: `pod-agent doctor` on the head (processes, open files), dashboard_agent.log",
        (
            Words(
                "No available agent to submit job",
                "Request failed with status code 500: No available agent to submit job, please try again later..",
            ),
        ),
        ("verl-project/verl#768", "OpenRLHF/OpenRLHF#1236"),
        Weight.WEAK,
        is_live=False,
    ),
    Cause(
        "socket path",
        (),
        "Ray's temp dir has too long a path for its sockets",
        "Use a short one: AGENT_RAY_ARGS=--temp-dir=/x",
        (
            Words(
                "AF_UNIX path length cannot exceed",
                "OSError: AF_UNIX path length cannot exceed 107 bytes: /very/long/sockets/raylet",
            ),
        ),
        ("verl-project/verl#1120",),
        is_live=False,
    ),
    Cause(
        "zombies",
        (),
        "processes that ended are not reaped, since PID 1 of this container is no init",
        "Start the agent as the container's first process, or the container with `--init`",
        (
            Words(
                "Stopped only …Ray processes",
                "Stopped only 0 out of 6 Ray processes within the grace period 16 seconds. status='zombie'",
                mild=True,
            ),
        ),
        ("ray-project/ray#62591",),
        Weight.LAST,
        is_live=False,
        of_ray=True,
    ),
    Cause(
        "leftover address",
        (),
        "RAY_ADDRESS leads to another Ray, or several run on this machine",
        "Unset RAY_ADDRESS in the job; end the other Ray, or name the address in the job",
        (
            Words("http does not have ClientBuilder", "Module: http does not have ClientBuilder."),
            Words(
                "Found multiple active Ray instances",
                "ConnectionError: Found multiple active Ray instances: {'10.0.0.5:6380', '10.0.0.5:6379'}",
            ),
        ),
        ("ray-project/ray#35010", "skypilot-org/skypilot#8306"),
    ),
    Cause(
        "runtime_env conflict",
        (),
        "job and driver set the same key of the runtime_env",
        "Set it in one place: variables in the pods' environment, the rest in AGENT_RUNTIME_ENV",
        (
            Words(
                "Failed to merge the Job's runtime env",
                "ValueError: Failed to merge the Job's runtime env {'env_vars': {'A': '1'}} with a ray.init's runtime env {'env_vars': {'A': '2'}} because of a conflict.",
            ),
        ),
        ("NovaSky-AI/SkyRL#1951",),
    ),
    Cause(
        "upload too large",
        (),
        "the working_dir is too large for Ray's dashboard",
        "Exclude .git, data and weights in the runtime_env's `excludes`, or put the code in the image",
        (Words("HTTPRequestEntityTooLarge", "aiohttp.web_exceptions.HTTPRequestEntityTooLarge"),),
        ("ray-project/ray#45602",),
        is_live=False,
    ),
)

NOISE: tuple[Cause, ...] = (
    Cause(
        "metrics exporter",
        (),
        "Ray could not start its metrics early enough, which nothing here needs",
        "Ignore it",
        (
            Words(
                "Failed to establish connection to the metrics exporter agent",
                "(raylet) main.cc:975: Failed to establish connection to the metrics exporter agent. Metrics will not be exported. Exporter agent status: RpcError: Running out of retries",
            ),
            Words(
                "Failed to establish connection to the event+metrics exporter agent",
                "(gcs_server) gcs_server.cc:302: Failed to establish connection to the event+metrics exporter agent. Events and metrics will not be exported.",
            ),
        ),
        ("ray-project/ray#59665",),
    ),
    Cause(
        "metrics not exported",
        (),
        "Ray could not deliver its metrics, which nothing here needs",
        "Ignore it",
        (
            Words(
                "Export metrics to agent failed",
                "metric_exporter.cc:206: Export metrics to agent failed: IOError:14: failed to connect",
            ),
        ),
        ("ray: src/ray/stats/metric_exporter.cc",),
    ),
    Cause(
        "observability pubsub",
        (),
        "gRPC asked a slow DNS for a name; the agent gives Ray numbers",
        "If boots are slow, mend the DNS of the pods",
        (
            Words(
                "Failed to connect to the observability pubsub at address",
                "Failed to connect to the observability pubsub at address head:6379 within 5 seconds",
            ),
        ),
        ("ray: python/ray/_private/gcs_pubsub.py",),
    ),
)
