"""Rows for the network between nodes: sockets, interfaces, InfiniBand and RoCE."""

from __future__ import annotations

from agent.decisions.causes.row import Cause, Weight, Words

_CONNECTS = r"refused|timed? ?out|[Nn]o route|unreachable|abort|reset|errno|returned|failed"

NETWORK: tuple[Cause, ...] = (
    Cause(
        "no interface",
        ("wrong_interface",),
        "NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME names an interface that a node does not have",
        "Unset it: the agent sets it on each node to the interface of its address",
        (
            Words(
                "no socket interface found",
                "node-2:40:90 [0] bootstrap.cc:42 NCCL WARN Bootstrap : no socket interface found",
            ),
            Words(
                "no NCCL_SOCKET_IFNAME interface found",
                "bootstrap.cc NCCL WARN Bootstrap : no NCCL_SOCKET_IFNAME interface found",
            ),
            Words(
                "NET/Socket : no interface found",
                "net_socket.cc:61 NCCL WARN NET/Socket : no interface found",
            ),
            Words(
                "No interface found that matches",
                "ncclInternalError: NCCL WARN No interface found that matches NCCL_SOCKET_IFNAME",
            ),
            Words("Unable to find address for: ", "RuntimeError: Unable to find address for: ens1"),
            Words(
                "Unable to find interface for",
                "RuntimeError: [enforce fail at gloo/transport/tcp/device.cc:83] ifa != nullptr. "
                "Unable to find interface for: [10.0.0.9]",
            ),
            Words(
                "makeDeviceForInterface()",
                "RuntimeError: makeDeviceForInterface(): unsupported gloo device",
            ),
            Words(
                "Could not find any interface",
                "RuntimeError: Could not find any interface named ib0",
            ),
        ),
        ("marin-community/marin#6940", "verl-project/verl#967", "nccl: src/bootstrap.cc"),
    ),
    Cause(
        "loopback",
        ("wrong_interface",),
        "NCCL or Gloo on one node uses an address that other nodes do not reach ({peer})",
        "Look at NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME on each node, or unset them: the agent "
        "sets them to the interface between the nodes",
        (
            Words(
                "onnect to …127.0.0.1<",
                "socket.cc:513 NCCL WARN socketStartConnect: Connect to 127.0.0.1<43211> failed : "
                "Connection refused",
            ),
            Words(
                "onnect to …<",
                "socket.cc:513 NCCL WARN socketStartConnect: Connect to 172.17.0.2<43211> failed : "
                "Software caused connection abort",
                near=r"(?:Bootstrap : Using|NET/Socket : Using)[^\n]{0,40}"
                r"(?:\blo:|docker|virbr|veth|br-[0-9a-f]|cni|flannel|cali)",
                only=_CONNECTS,
            ),
            Words(
                "onnect to …172.17.0.",
                "NCCL WARN socketStartConnect: Connect to 172.17.0.3<43211> failed : No route to host",
                only=r"onnect to 172\.17\.0\.\d{1,3}<",
            ),
            Words(
                "trying to connect to (172.17.0.",
                "[E socket.cpp:922] [c10d] The client socket has timed out after 1800s while trying "
                "to connect to (172.17.0.2, 44737).",
            ),
            Words(
                "onnect to fe80:",
                "NCCL WARN socketStartConnect: Connect to fe80::1%eth0<43211> failed : Invalid argument",
            ),
            Words(
                "connectFullMesh failed",
                "RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/"
                "tcp/pair.cc:144] no error",
            ),
        ),
        ("aws-samples/aws-do-eks#50", "vllm-project/vllm#7074", "NVIDIA/nccl#934"),
        reads=r"(?:onnect to \(?|remote=\[?)(?P<peer>[0-9a-fA-F.:]{3,39})",
    ),
    Cause(
        "Gloo",
        ("wrong_interface",),
        "Gloo took this node's loopback, since its host name stands for no address of its own",
        "Leave GLOO_SOCKET_IFNAME to the agent, or set it to the interface between the nodes",
        (
            Words(
                "Using the loopback address as fallback",
                "[W socket.cpp:697] Unable to resolve hostname to a (local) address. Using the "
                "loopback address as fallback.",
                mild=True,
            ),
        ),
        ("vllm-project/vllm#7074",),
        Weight.LAST,
        is_live=False,
    ),
    Cause(
        "vLLM address",
        (),
        "VLLM_HOST_IP is the same on several nodes",
        "Unset it: the agent sets it on each node to that node's address",
        (
            Words(
                "Every node should have a unique IP address",
                "RuntimeError: Every node should have a unique IP address. Got 2 nodes with node "
                "ids [a, b] and 3 unique IP addresses",
            ),
        ),
        ("vllm-project/vllm#7756", "vllm-project/vllm#43095"),
    ),
    Cause(
        "memlock",
        ("memlock",),
        "the limit on locked memory is too low to register memory with the network card",
        "Raise it: `ulimit -l unlimited`, `--ulimit memlock=-1` of the container, LimitMEMLOCK of "
        "the service",
        (
            Words(
                "ibv_reg_mr…Cannot allocate memory",
                "ibvwrap.cc:278 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot "
                "allocate memory",
            ),
            Words(
                "ibv_create_…Cannot allocate memory",
                "ibvwrap.cc:175 NCCL WARN Call to ibv_create_cq failed with error Cannot allocate "
                "memory",
            ),
            Words(
                "ibv_alloc_pd…Cannot allocate memory",
                "NCCL WARN Call to ibv_alloc_pd failed with error Cannot allocate memory",
            ),
            Words(
                "fi_mr_reg…Cannot allocate memory",
                "NET/OFI fi_mr_reg failed: Cannot allocate memory",
            ),
        ),
        ("NVIDIA/nccl-tests#206", "nccl: src/misc/ibvwrap.cc"),
    ),
    Cause(
        "memlock limit",
        ("memlock",),
        "the limit on locked memory is low, which limits what the network card can register",
        "Raise it: `ulimit -l unlimited`, `--ulimit memlock=-1` of the container, LimitMEMLOCK of "
        "the service",
        (
            Words(
                "RLIMIT_MEMLOCK is",
                "libibverbs: Warning: RLIMIT_MEMLOCK is 65536 bytes.",
                mild=True,
            ),
        ),
        ("rdma-core: libibverbs/init.c",),
        Weight.WEAK,
    ),
    Cause(
        "RoCE GID",
        ("roce_gid",),
        "RoCE queue pairs of two nodes cannot connect: the GID index or the pair of cards is wrong",
        "Set NCCL_IB_GID_INDEX to the index of the RoCE v2 address (`show_gids`), NCCL_IB_HCA to "
        "the cards of one network, or NCCL_IB_DISABLE=1 to do without",
        (
            Words(
                "ibv_modify_qp failed with",
                "ibvwrap.cc:160 NCCL WARN Call to ibv_modify_qp failed with error No such device",
            ),
            Words(
                "ibv_query_gid",
                "NCCL WARN Call to ibv_query_gid failed with error Invalid argument",
                only="failed",
            ),
            Words("Failed to modify QP", "Failed to modify QP to RTR"),
        ),
        ("NVIDIA/nccl-tests#227", "NVIDIA/nccl-tests#185", "nccl: src/misc/ibvwrap.cc"),
    ),
    Cause(
        "InfiniBand",
        ("infiniband_link",),
        "the InfiniBand or RoCE link to another node failed",
        "Look at the link (`ibstat`, `ibdiagnet`, counters of the switch); NCCL_IB_TIMEOUT=22 for a "
        "slow network; change the node whose card fails",
        (
            Words(
                "Got completion from peer…with error",
                "NET/IB : Got completion from peer 10.0.0.4<39138> with error 12, opcode 0, len 0",
            ),
            Words(
                "Got completion from peer…status=",
                "NCCL WARN NET/IB: Got completion from peer 10.0.0.4<3913> with "
                "status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0)",
            ),
            Words(
                "Got completion with error",
                "NCCL WARN NET/IB : Got completion with error 12, opcode 1, len 0, vendor err 129",
            ),
            Words("IBV_WC_RETRY_EXC_ERR", "status=IBV_WC_RETRY_EXC_ERR(12)"),
            Words("IBV_WC_RNR_RETRY_EXC_ERR", "status=IBV_WC_RNR_RETRY_EXC_ERR(13)"),
            Words(
                "transport retry counter exceeded", "mlx5: node: transport retry counter exceeded"
            ),
            Words(
                "Got async event : …",
                "NCCL WARN NET/IB : mlx5_2:1 Got async event : port error",
                only=r"Got async event : (?:port error|device fatal|local catastrophic|QP)",
            ),
            Words(
                "Got async fatal event",
                "NCCL WARN NET/IB : mlx5_1:1 Got async fatal event: port error",
            ),
            Words("async fatal event on device", "NET/IB : 4:mlx5_0 async fatal event on device"),
            Words("ibv_poll_cq…failed", "NCCL WARN Call to ibv_poll_cq() failed with error -1"),
            Words("ibv_open_device…failed", "NCCL WARN Call to ibv_open_device failed"),
            Words(
                "ibv_query_port…failed",
                "NCCL WARN Call to ibv_query_port failed with error Input/output error",
            ),
            Words("Unable to open device mlx", "NCCL WARN NET/IB : Unable to open device mlx5_0"),
            Words(
                "ibv_post_send…failed", "NCCL WARN ibv_post_send() failed with error Input/output"
            ),
            Words(
                "mlx5_core…Link down",
                "kernel: mlx5_core 0000:1a:00.0 ib0: Link down",
                mild=True,
            ),
        ),
        ("tatsu-lab/stanford_alpaca#207", "NVIDIA/nccl#1664", "NVIDIA/nccl#1405"),
        Weight.WEAK,
    ),
    Cause(
        "NCCL route",
        ("nccl_socket",),
        "NCCL could not reach {peer}: there is no route to it",
        "Look at NCCL_SOCKET_IFNAME on each node (Instant Clusters: ens1, Global Networking: "
        "podnet1), and whether that node is up",
        (
            Words(
                "onnect",
                "misc/socket.cc:533 NCCL WARN socketPollConnect: Connect to 10.0.0.9<56849> returned "
                "113(No route to host) errno 115(Operation now in progress)",
                only=r"WARN.{0,80}onnect.{0,80}(?:No route to host|Network is unreachable)",
                unless=r"NCCL INFO|[Rr]etry",
            ),
        ),
        ("sgl-project/sglang#3820", "nccl: src/misc/socket.cc"),
        reads=r"(?:onnect to |from )(?P<peer>[^\s<]+)",
    ),
    Cause(
        "NCCL connect",
        ("nccl_socket",),
        "NCCL could not reach {peer}: the interface is wrong, or its ports are closed",
        "Look at NCCL_SOCKET_IFNAME on each node (Instant Clusters: ens1, Global Networking: "
        "podnet1) and open all ports between the nodes",
        (
            Words(
                "socketStartConnect: …onnect to",
                "misc/socket.cc:456 NCCL WARN socketStartConnect: Connect to 172.18.0.2<44801> "
                "failed : Software caused connection abort",
            ),
            Words(
                "socketPollConnect: …onnect",
                "misc/socket.cc:533 NCCL WARN socketPollConnect: Connect to 10.0.0.9<56849> returned "
                "111(Connection refused) errno 115(Operation now in progress)",
                unless=r"NCCL INFO|[Rr]etry",
            ),
            Words(
                "onnect to …> failed : ",
                "include/socket.h:403 NCCL WARN Connect to 10.0.0.9<35123> failed : Connection "
                "refused",
            ),
            Words(
                "Call to connect timeout",
                "include/socket.h:361 NCCL WARN Call to connect timeout : Connection refused",
            ),
            Words(
                "Call to connect…failed",
                "NCCL WARN Call to connect to 10.0.0.9<35123> failed : Connection timed out",
            ),
            Words(
                "socketFinalizeConnect", "NCCL WARN socketFinalizeConnect: wrong type", only="WARN"
            ),
            Words(
                "exceeded retries",
                "misc/socket.cc NCCL WARN socketStartConnect: exceeded retries (20000)",
                only="socket|NCCL",
            ),
            Words(
                "exceeded timeouts",
                "misc/socket.cc NCCL WARN socketStartConnect: exceeded timeouts (20000)",
                only="socket|NCCL",
            ),
            Words(
                "Call to connect returned",
                "NCCL WARN Call to connect returned Connection refused, retrying",
                only="NCCL WARN|giving up",
                mild=True,
            ),
            Words(
                "socketProgress…Connection timed out",
                "misc/socket.cc:49 NCCL WARN socketProgressOpt: Call to recv from 10.0.0.9<4000> "
                "failed : Connection timed out",
            ),
            Words(
                "socketProgress…No route to host",
                "misc/socket.cc:49 NCCL WARN socketProgressOpt: Call to recv from 10.0.0.9<4000> "
                "failed : No route to host",
            ),
        ),
        ("sgl-project/sglang#3820", "NVIDIA/nccl-tests#166", "nccl: src/misc/socket.cc"),
        Weight.WEAK,
        reads=r"(?:onnect to |from )(?P<peer>[^\s<]+)",
    ),
    Cause(
        "rendezvous",
        ("nccl_socket",),
        "a rank could not reach the address where the ranks meet ({peer})",
        "Open all ports between the nodes, and look at MASTER_ADDR and MASTER_PORT; if the first "
        "rank failed, its own log has the cause",
        (
            Words(
                "The client socket has timed out after",
                "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms "
                "while trying to connect to (10.0.0.1, 29500).",
            ),
            Words(
                "The client socket has failed to connect to any network address",
                "torch.distributed.DistNetworkError: The client socket has failed to connect to any "
                "network address of (node-0, 29500).",
            ),
            Words(
                "The connection to the C10d store has failed",
                "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection "
                "to the C10d store has failed. See inner exception for details.",
            ),
            Words(
                "waiting for clients.…clients joined",
                "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. "
                "1/2 clients joined.",
            ),
        ),
        ("pytorch: torch/csrc/distributed/c10d/socket.cpp, TCPStore.cpp",),
        Weight.WEAK,
        reads=r"\((?P<peer>[\w.:\[\] -]+, ?\d+)\)",
    ),
)

SYMPTOMS: tuple[Cause, ...] = (
    Cause(
        "NCCL timeout",
        (),
        "a collective operation waited for a rank that never came",
        "Look for the rank that is silent first: it ended, ran out of memory or is stuck; "
        "`ray stack` or py-spy shows where",
        (
            Words(
                "Watchdog caught collective operation timeout",
                "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, "
                "OpType=ALLREDUCE",
            ),
            Words("Timeout at NCCL work", "RuntimeError: Timeout at NCCL work: 12"),
        ),
        ("pytorch: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp",),
    ),
    Cause(
        "peer gone",
        (),
        "another rank closed its connection, so that its own log has the cause",
        "Look for the rank that ended first, and at the end of its log",
        (
            Words(
                "Connection closed by remote peer",
                "socketProgress: Connection closed by remote peer",
            ),
            Words(
                "remote process exited or there was a network error",
                "NCCL error: remote process exited or there was a network error",
            ),
            Words(
                "Connection closed by peer",
                "RuntimeError: [gloo/transport/tcp/pair.cc:589] Connection closed by peer [10.0.0.4]:1",
            ),
        ),
        ("nccl: src/misc/socket.cc",),
        is_live=False,
    ),
)
"""What other ranks print when one has failed: no cause, but it shows where to look."""
