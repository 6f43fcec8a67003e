"""Causes in Ray itself, by its own words."""

from __future__ import annotations

from agent.decisions.remedies.row import Remedy

RAY: tuple[Remedy, ...] = (
    Remedy(
        "version mismatch",
        r"Version mismatch: The cluster was started with",
        "Ray or Python differ between nodes or between the job and its cluster, if only in the "
        "patch",
        "Use one image on all nodes, and the Python of that image for the job",
        signs=("Version mismatch: The cluster was started with",),
    ),
    Remedy(
        "session",
        r"Session name \S+ does not match persisted value",
        "an older GCS, or a Redis behind it, owns Ray's port",
        "End it (`ray stop --force` on that machine), or move ours: AGENT_RAY_PORT",
    ),
    Remedy(
        "running already",
        r"Ray is trying to start at \S+, but is already running",
        "another Ray lives on this machine, or left its address file behind",
        "End it (`ray stop --force`), or move ours: AGENT_RAY_PORT, AGENT_PORT",
    ),
    Remedy(
        "ports collide",
        r"Ray component \S+ is trying to use a port number (?P<port>\d+)|No available ports",
        "Ray's ports collide with each other, or with the ports that the kernel gives away",
        "Move ours by AGENT_PORT and AGENT_RAY_PORT; keep them out of ip_local_port_range",
    ),
    Remedy(
        "registration",
        r"have not registered (?:to raylet )?within (?:the )?timeout",
        "Ray's workers started too slowly: a slow disk or image, or they died at their start",
        "Raise RAY_worker_register_timeout_seconds (60) on every node; python-core-worker-*.log "
        "says "
        "whether they died",
    ),
    Remedy(
        "runtime env agent",
        r"exited immediately because the runtime env agent timed out",
        "Ray's runtime_env agent did not answer in time, and Ray ended with it",
        "Look at runtime_env_agent.log: mostly an address that is not this node's, or no memory",
    ),
    Remedy(
        "job supervisor",
        r"Job supervisor actor failed to start within",
        "Ray found no room for the job's own driver",
        "Ask for no resources of the entrypoint; look whether the head has free CPUs and memory",
    ),
    Remedy(
        "dashboard agent",
        r"No available agent to submit job",
        "the dashboard's agent on the head is not up, or died of a limit",
        "If it stays: `pod-agent doctor` on the head (processes, open files), dashboard_agent.log",
    ),
    Remedy(
        "socket path",
        r"AF_UNIX path length cannot exceed",
        "Ray's temp dir has too long a path for its sockets",
        "Use a short one: AGENT_RAY_ARGS=--temp-dir=/x",
    ),
    Remedy(
        "zombies",
        r"Stopped only \d+ out of \d+ Ray processes",
        "processes that ended are not reaped, since PID 1 of this container is no init",
        "Start the agent as the container's first process, or the container with `--init`",
    ),
    Remedy(
        "leftover address",
        r"Module: http does not have ClientBuilder|Found multiple active Ray instances",
        "RAY_ADDRESS leads to another Ray, or several run on this machine",
        "Unset RAY_ADDRESS in the job; end the other Ray, or name the address in the job",
        signs=(
            "http does not have ClientBuilder",
            "Found multiple active Ray instances",
        ),
    ),
    Remedy(
        "no such resource",
        r"No available node types can fulfill resource request (?P<asked>\{[^}]*\})",
        "no node of Ray has what the job asks for ({asked})",
        "Compare with `pod-agent status`: GPUs that Ray does not see are counted by AGENT_NUM_GPUS",
        signs=("No available node types can fulfill resource request",),
    ),
    Remedy(
        "too few GPUs",
        r"Total available GPUs (?P<has>[\d.]+) is less than total desired GPUs (?P<wants>[\d.]+)",
        "the job wants {wants} GPUs, and Ray has {has}",
        "Correct the job's nnodes and GPUs per node, or EXPECTED_WORKERS, so that all have joined",
        signs=("is less than total desired GPUs",),
    ),
    Remedy(
        "runtime_env conflict",
        r"Failed to merge the Job's runtime env .{0,400}because of a conflict",
        "job and driver set the same key of the runtime_env",
        "Set it in one place: variables in the pods' environment, the rest in AGENT_RUNTIME_ENV",
        signs=("Failed to merge the Job's runtime env",),
    ),
    Remedy(
        "upload too large",
        r"HTTPRequestEntityTooLarge",
        "the working_dir is too large for Ray's dashboard",
        "Exclude .git, data and weights in the runtime_env's `excludes`, or put the code in the "
        "image",
    ),
)
