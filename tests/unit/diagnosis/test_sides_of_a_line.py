"""Lines that several kinds of runs print: the sentence is true in all of them."""

from __future__ import annotations

import pytest

from agent.diagnosis.find_cause import Diagnosis, diagnose_logs
from agent.diagnosis.searched_log import Log


def found(text: str) -> Diagnosis:
    """Return the diagnosis of one job's output."""
    return diagnose_logs([Log("", "job.log", text)])


def traceback(error: str, *frames: str) -> str:
    """Return a traceback whose frames are `file:function`."""
    lines = ["Traceback (most recent call last):"]
    for frame in frames:
        file, _, function = frame.partition(":")
        lines += [f'  File "{file}", line 9, in {function}', "    a_line_of_code()"]
    return "\n".join([*lines, error])


PACKAGES = "/opt/venv/lib/python3.12/site-packages"
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
LOADED_WITHOUT_ROOM = traceback(
    OUT_OF_MEMORY,
    f"{PACKAGES}/vllm/v1/worker/gpu_worker.py:load_model",
    f"{PACKAGES}/vllm/model_executor/layers/linear.py:create_weights",
)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (
            (
                "NVRM: Xid (PCI:0000:17:00): 63, pid='<unknown>', name=<unknown>, Row Remapper: "
                "New row marked for remapping"
            ),
            "Xid of memory",
        ),
        (
            (
                "NVRM: Xid (PCI:0000:17:00): 154, GPU recovery action changed from 0x0 (None) to "
                "0x2 (Node Reboot Required)"
            ),
            "Xid of recovery",
        ),
        (LOADED_WITHOUT_ROOM, "weights of the engine"),
        (
            traceback(
                OUT_OF_MEMORY, f"{PACKAGES}/vllm/v1/worker/gpu_model_runner.py:execute_model"
            ),
            "GPU memory of the engine",
        ),
        (
            traceback(
                OUT_OF_MEMORY,
                "/workspace/slime/backends/fsdp_utils/actor.py:update_weights",
                f"{PACKAGES}/sglang/srt/utils/common.py:serialize",
            ),
            "GPU memory",
        ),
        (
            traceback(
                "RuntimeError: CUDA error: out of memory",
                f"{PACKAGES}/deepspeed/runtime/swap_tensor/utils.py:pin_memory",
            ),
            "pinned memory",
        ),
        (
            (
                "RuntimeError: CUDA error: CUDA driver version is insufficient for CUDA runtime "
                "version"
            ),
            "driver older or not there",
        ),
        (
            (
                "RuntimeError: Attempting to deserialize object on a CUDA device but "
                "torch.cuda.is_available() is False."
            ),
            "saved on another GPU",
        ),
        ("/w/run.sh: line 3: /opt/team/train: Permission denied", "permission in a script"),
        ("bash: line 3: /proc/sys/vm/drop_caches: Permission denied", "permission in a script"),
        ("run.sh: line 9: --lr: command not found", "option taken for a command"),
        ("run.sh: line 9: torchrun: command not found", "command missing"),
        ("ValueError: Dataset gsm8k_rl not found", "data set not found"),
        ("ValueError: Dataset /data/gsm8k_rl not found", "data file"),
        ("ValueError: Data split train does not exist", ""),
        ("ValueError: Checkpoint format version is missing", ""),
        (
            "jinja2.exceptions.TemplateError: Conversation roles must alternate",
            "chat template rejects",
        ),
        ("ValueError: No chat template is set for this tokenizer", "chat template"),
        ("nvidia-container-cli: device error: 7: unknown device: unknown", "GPU of a container"),
        (
            (
                "openai.BadRequestError: Error code: 400 - {'message': \"This model's maximum "
                "context length is 8192 tokens. However, you requested 9192 tokens (1000 in the "
                'messages, 8192 in the completion)."}'
            ),
            "request too long",
        ),
        (
            (
                "slurmstepd: error: execve(): /var/spool/slurmd/job00089/slurm_script: No such "
                "file or directory"
            ),
            "Slurm script lost",
        ),
        ("OSError: [Errno 23] Too many open files in system: '/a'", "open files of the host"),
        ("failed to create fsnotify watcher: too many open files", "inotify"),
        (
            "PermissionError: [Errno 1] Operation not permitted: '/data/x'",
            "operation on a file",
        ),
        ("pynvml.NVMLError_NoPermission: Insufficient Permissions", "NVML refuses"),
        (
            traceback(
                "TimeoutError",
                "/workspace/rewards/math_reward.py:compute_score",
                "/usr/lib/python3.12/asyncio/timeouts.py:__aexit__",
            ),
            "time limit of a reward",
        ),
        (
            traceback(
                "TimeoutError",
                "/workspace/rewards/math_reward.py:compute_score",
                f"{PACKAGES}/aiohttp/client.py:_request",
            ),
            "reward server",
        ),
        ("bash: line 3: /data/out/train.log: Permission denied", "permission"),
        ("bash: line 3: ./train.sh: Permission denied", "not executable"),
        ("fatal: Authentication failed for 'https://git.lab/a/b.git/'", "access to a repository"),
        (
            "slurmstepd: error: pyxis:     Write failed because No space left on device",
            "disk of images",
        ),
        (
            "blas_thread_init: pthread_create failed for thread 4 of 64: Cannot allocate memory",
            "memory not given",
        ),
        ("RuntimeError: mbind: Operation not permitted", "not permitted"),
        ("setting membind: Operation not permitted", "not permitted, said in passing"),
        (
            (
                "node-1:9:9 [0] NCCL WARN NET/IB : Unable to open device mlx5_0\n"
                "node-1:9:9 [0] init.cc:100 NCCL WARN Error: network IB not found."
            ),
            "RDMA device",
        ),
        ("node-1:9:9 [0] init.cc:100 NCCL WARN Error: network IB not found.", "NCCL_NET"),
        (
            (
                "transport/nvls.cc:99 NCCL WARN Failed to bind NVLink SHARP (NVLS) Multicast "
                "memory of size 2097152 : CUDA error 2 'out of memory'."
            ),
            "GPU memory",
        ),
    ],
)
def test_another_row_has_a_line_with_another_reason(text: str, key: str) -> None:
    """What the line states beside its first words shows which reason it is."""
    assert found(text).key == key


@pytest.mark.parametrize(
    ("text", "sides"),
    [
        ("Failed to initialize NVML: No supported GPUs were found", ["not there", "finds no GPU"]),
        ("RuntimeError: CUDA error: an illegal instruction was encountered", ["its own", "GPU's"]),
        (
            "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(h)",
            ["memory is full", "earlier kernel"],
        ),
        (
            (
                "RuntimeError: CUDA error: Invalid access of peer GPU memory over nvlink or a "
                "hardware error"
            ),
            ["process", "hardware"],
        ),
        (
            "RuntimeError: CUDA driver initialization failed, you might not have a CUDA gpu.",
            ["no GPU", "forked"],
        ),
        (
            "fatal: could not read Username for 'https://git.lab': No such device",
            ["none of that name"],
        ),
        ("OSError: [Errno 98] Address already in use", ["earlier run", "second part"]),
        (
            (
                "RuntimeError: DataLoader worker (pid 9) is killed by signal: Bus error. It is "
                "possible that dataloader's workers are out of shared memory."
            ),
            ["/dev/shm is full", "file that it maps"],
        ),
        ("E0804 api.py:869] failed (exitcode: -9) local_rank: 0 (pid: 44)", ["memory", "launcher"]),
        ("slurmstepd: error: execve(): ./run: No such file or directory", ["not on that", "`#!`"]),
        (
            "NCCL WARN Bootstrap Root : mismatch in rank count from procs 16 : 8",
            ["two launches", "two numbers"],
        ),
    ],
)
def test_a_sentence_names_each_reason_that_is_left(text: str, sides: list[str]) -> None:
    """The line alone does not choose between them."""
    cause = found(text).cause
    for side in sides:
        assert side in cause


def test_the_size_of_a_model_is_not_mended_by_a_smaller_share() -> None:
    """Weights that do not fit need more GPUs: the share of the engine does not change that."""
    assert "utilization" not in found(LOADED_WITHOUT_ROOM).what_to_do


@pytest.mark.parametrize(
    "text",
    [
        "INFO 01-02 03:04:05 utils.py:12] Port 29500 is already in use, trying port 29501",
        "INFO sandbox 12 exited: OOMKilled (limit 2Gi)",
        "sandbox result: {'exit_code': 137, 'reason': 'OOMKilled'}",
        "tail: inotify cannot be used, reverting to polling: Too many open files",
        "mkdir: cannot create directory '/sys/fs/cgroup/memory/a': No space left on device",
        "error: group of OUT_OF_MEMORY retries is empty",
    ],
)
def test_what_programs_print_in_passing_is_no_cause(text: str) -> None:
    """Programs go on from it, or it is about something else than its words say."""
    assert found(text).key == ""


def test_sizes_end_where_their_values_begin() -> None:
    """The values that a message adds are no part of a name."""
    text = traceback(
        "ValueError: hidden_size must be divisible by num_heads (got `hidden_size`: 1024 and "
        "`num_heads`: 15).",
        f"{PACKAGES}/transformers/models/a/modeling_a.py:__init__",
    )
    assert "hidden_size does not divide by num_heads" in found(text).cause
    assert "got" not in found(text).cause


def test_the_killed_process_is_named() -> None:
    """A user sees whether it is one of the job's own."""
    text = "[ 8812.1] Memory cgroup out of memory: Killed process 8812 (ray::Worker) total-vm:21kB"
    assert "(ray::Worker)" in found(text).cause


def test_a_question_ends_without_a_period() -> None:
    """What to do may be a question."""
    said = found("ValueError: CUDA is not available").remedy()
    assert "? It shows in job.log" in said
    assert "?." not in said


RUN = "/workspace/train.py:main"
AUTO = f"{PACKAGES}/transformers/models/auto/configuration_auto.py"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (traceback("KeyError: 'qwen9'", RUN, f"{AUTO}:__getitem__"), "transformers too old"),
        (
            traceback(
                "KeyError: 'rope_type'",
                f"{AUTO}:from_pretrained",
                f"{PACKAGES}/transformers/modeling_rope_utils.py:rope_config_validation",
            ),
            "",
        ),
        (
            traceback(
                "BlockingIOError: [Errno 11] Resource temporarily unavailable",
                "/usr/lib/python3.12/subprocess.py:_execute_child",
            ),
            "threads",
        ),
        (
            traceback(
                "BlockingIOError: [Errno 11] Resource temporarily unavailable",
                "/usr/lib/python3.12/subprocess.py:communicate",
                "/workspace/tools.py:write_all",
            ),
            "",
        ),
        (
            traceback(
                "IndexError: index 0 is out of bounds for axis 0 with size 0",
                "/workspace/rl_dataset.py:__getitem__",
            ),
            "empty array",
        ),
        (
            traceback(
                "KeyError: 'layers.3.mlp.gate.bias'",
                f"{PACKAGES}/vllm/model_executor/models/mixtral.py:load_weights",
            ),
            "weight without a place",
        ),
        (
            traceback(
                "KeyError: 'layers.3.mlp.gate.bias'",
                f"{PACKAGES}/megatron/bridge/models/conversion.py:load_weights_hf_to_megatron",
            ),
            "",
        ),
        (
            traceback(
                "zipfile.BadZipFile: File is not a zip file",
                f"{PACKAGES}/numpy/lib/_npyio_impl.py:load",
                "/usr/lib/python3.12/zipfile/__init__.py:_RealGetContents",
            ),
            "file of arrays broken",
        ),
        (
            traceback(
                "RuntimeError: The size of tensor a (4) must match the size of tensor b (3) at "
                "non-singleton dimension 0",
                f"{PACKAGES}/torch/optim/optimizer.py:wrapper",
                "/workspace/muon.py:step",
            ),
            "",
        ),
    ],
)
def test_the_innermost_frames_decide(text: str, key: str) -> None:
    """A name that stands further out shows only what called it, or what ran it."""
    assert found(text).key == key


def test_a_server_that_reads_json_itself_got_no_answer() -> None:
    """A handler runs under the frames of a library that is a client's too."""
    error = "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)"
    decoder = "/usr/lib/python3.12/json/decoder.py:raw_decode"
    handler = (f"{PACKAGES}/aiohttp/web_protocol.py:_handle_request", "/workspace/judge.py:score")
    client = f"{PACKAGES}/aiohttp/client_reqrep.py:json"
    assert "/workspace/judge.py:9" in (found(traceback(error, *handler, decoder)).cause or "")
    assert "answer of a server" in (found(traceback(error, RUN, client, decoder)).cause or "")


def test_the_named_library_decides_whose_build_lacks_nccl() -> None:
    """A function of NCCL that torch lacks, and one that a package lacks."""
    lacks = ".so: undefined symbol: ncclBroadcast"
    of_torch = diagnose_logs([Log("", "x", f"ImportError: /v/torch/lib/libtorch_cuda{lacks}")])
    assert of_torch.key == "NCCL of another version"
    of_package = diagnose_logs([Log("", "x", f"ImportError: /v/bmtrain/nccl/_C.cpython-38{lacks}")])
    assert of_package.key == "NCCL of an extension"
    assert "built without NCCL" in of_package.cause
