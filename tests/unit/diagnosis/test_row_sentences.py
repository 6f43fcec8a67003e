"""What rows say about lines that look alike: each has its own cause and its own remedy."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agent.diagnosis.find_cause import Diagnosis, diagnose_logs
from agent.diagnosis.rows import Row, short_name, table
from agent.diagnosis.searched_log import Log
from agent.frameworks import framework_named
from support.known_lines import find_known_lines


def found(text: str) -> Diagnosis:
    """Return the diagnosis of one job's output."""
    return diagnose_logs([Log("", "job.log", text)])


STORE = (
    "[rank1]: torch.distributed.DistBackendError: [1] is setting up NCCL communicator and "
    "retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') "
    "got error: wait timeout after 600000ms, keys: /default_pg/0//cuda//0"
)
TIMEOUT = (
    "requests.exceptions.ReadTimeout: HTTPConnectionPool(host='10.0.0.7', port=9999): "
    "Read timed out. (read timeout=30)"
)


@pytest.mark.parametrize(
    "text", [STORE, f"the settings cannot be retrieved, defaults count\n{TIMEOUT}"]
)
def test_the_word_retrieve_is_no_retriever(text: str) -> None:
    """NCCL retrieves an id, and other programs other things; the retriever is a service."""
    assert found(text).key != "retriever"
    assert [known.key for known in find_known_lines(text.splitlines())] != ["retriever"]


@pytest.mark.parametrize(
    ("text", "key", "cause"),
    [
        (
            (
                "pkg_resources.DistributionNotFound: The 'triton' distribution was not found and is "
                "required by the application"
            ),
            "missing module",
            "the job's Python lacks a module (triton)",
        ),
        (
            "ImportError: No vLLM was found, please install it",
            "package asked for",
            "a package is missing, or too old",
        ),
        (
            (
                '  File "/x/rl_dataset.py", line 4, in prompt_key\n    frame[keys]\n'
                "KeyError: \"None of [Index(['question'], dtype='object')] are in the [columns]\""
            ),
            "column not in the data",
            "the data set lacks a column that the job names (question)",
        ),
        (
            (
                "RuntimeError: Error in faiss::FileIOReader::FileIOReader(const char*) at "
                "/build/faiss/impl/io.cpp:67: Error: 'f' failed: could not open /data/e5_Flat.index "
                "for reading: No such file or directory"
            ),
            "data file",
            "a data file or folder does not exist (/data/e5_Flat.index)",
        ),
    ],
)
def test_names_are_those_of_what_is_missing(text: str, key: str, cause: str) -> None:
    """Not a word of the sentence, nor the program's own source; no name, no parentheses."""
    answer = found(text)
    assert (answer.key, answer.cause) == (key, cause)


def test_no_sentence_shows_what_could_not_be_read() -> None:
    """Of each example, the sentence has all names, or leaves their parentheses out."""
    for row in table().values():
        for words in row.words:
            cause, remedy = row.filled(words.example)
            assert "(?)" not in cause, words.example
            assert "None of" not in cause, words.example
            assert "{" not in remedy.replace("{reward_url}", ""), words.example


@pytest.mark.parametrize(
    "text",
    [
        (
            "srun: error: Unable to create step for job 512: Requested node configuration is not "
            "available"
        ),
        "srun: error: Unable to allocate resources: Requested node configuration is not available",
        "srun: error: Unable to create step for job 512: More processors requested than permitted",
        "sbatch: error: Batch job submission failed: Invalid generic resource (gres) specification",
        "srun: error: Unable to allocate resources: Memory required by task is not available",
    ],
)
def test_a_request_to_slurm_is_no_placement_group(text: str) -> None:
    """Slurm's own words say what to compare; Ray is not involved."""
    answer = found(text)
    assert answer.key == "Slurm request"
    assert "Ray" not in answer.remedy()
    assert "scontrol" in answer.what_to_do


def test_slurm_that_tries_again_has_not_failed() -> None:
    """A step that waits for a busy node is created later."""
    line = "srun: Job 512 step creation temporarily disabled, retrying (Requested nodes are busy)"
    assert found(line).key == ""


@pytest.mark.parametrize(
    "text",
    [
        (
            'wandb.errors.CommError: Error uploading run: returned error 403: {"data":'
            '{"upsertBucket":null},"errors":[{"message":"permission denied","path":["upsertBucket"]}]}'
        ),
        (
            "wandb.errors.CommError: It appears that you do not have permission to access the "
            "requested resource. Please reach out to the project owner to grant you access."
        ),
        (
            "wandb: ERROR Error while calling W&B API: entity team-x not found during upsertBucket "
            "(<Response [404]>)"
        ),
        "wandb: ERROR Error while calling W&B API: permission denied (<Response [403]>)",
    ],
)
def test_a_team_that_wandb_refuses_is_no_wrong_key(text: str) -> None:
    """The key is right; the entity or the rights in it are not."""
    answer = found(text)
    assert answer.key == "W&B permission"
    assert "WANDB_ENTITY" in answer.what_to_do


@pytest.mark.parametrize(
    "text",
    [
        (
            "wandb: ERROR Error while calling W&B API: run ab12 was previously created and deleted; "
            "try a new run name (<Response [409]>)"
        ),
        (
            "wandb.errors.CommError: Error communicating with wandb: run ab12 was previously created "
            "and deleted; try a new run name (Error 409: Conflict)"
        ),
    ],
)
def test_a_deleted_wandb_run_is_no_lost_network(text: str) -> None:
    """W&B answered: the id was deleted, and cannot be used again."""
    answer = found(text)
    assert answer.key == "W&B run deleted"
    assert "WANDB_RUN_ID" in answer.what_to_do


@pytest.mark.parametrize(
    ("text", "key", "advice"),
    [
        (
            (
                "requests.exceptions.HTTPError: 403 Client Error: Forbidden for url: "
                "https://huggingface.co/api/repos/create"
            ),
            "hub write",
            "write access",
        ),
        (
            (
                "huggingface_hub.errors.HfHubHTTPError: 403 Forbidden: You don't have the rights to "
                'create a model under the namespace "team-x".'
            ),
            "hub write",
            "write access",
        ),
        (
            (
                "huggingface_hub.errors.HfHubHTTPError: (Request ID: Root=1) 403 Forbidden: Please "
                "enable access to public gated repositories in your fine-grained token settings to "
                "view this repository."
            ),
            "hub token settings",
            "settings",
        ),
        (
            (
                "huggingface_hub.errors.HfHubHTTPError: 401 Client Error: Unauthorized for url: "
                "https://huggingface.co/api/whoami-v2 (Request ID: Root=1). Invalid credentials in "
                "Authorization header"
            ),
            "hub token",
            "HF_TOKEN",
        ),
        (
            "huggingface_hub.errors.GatedRepoError: 403 Client Error. (Request ID: Root=1)",
            "gated model",
            "Ask for access",
        ),
    ],
)
def test_each_refusal_of_the_hub_has_its_own_remedy(text: str, key: str, advice: str) -> None:
    """A write, a token's settings, a wrong token and a gated model are four things."""
    answer = found(text)
    assert answer.key == key
    assert advice in answer.what_to_do


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: There is no module or parameter named 'base_model' in Qwen2ForCausalLM",
        (
            '  File "/x/vllm/model_executor/models/qwen2.py", line 9, in load_weights\n    param\n'
            "KeyError: 'layers.0.self_attn.q_proj.lora_A.default.weight'"
        ),
    ],
)
def test_names_of_lora_are_no_checkpoint(text: str) -> None:
    """The trainer sent adapter weights to an engine that has none."""
    answer = found(text)
    assert answer.key == "LoRA names"
    assert "checkpoint" not in answer.remedy()


@pytest.mark.parametrize(
    ("text", "host"),
    [
        (
            (
                "[W socket.cpp:697] [c10d] The IPv4 network addresses of (node-0, 29500) cannot be "
                "retrieved (gai error: -2 - Name or service not known).\n"
                "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms "
                "while trying to connect to (node-0, 29500)."
            ),
            "node-0",
        ),
        (
            (
                "requests.exceptions.ConnectionError: HTTPConnectionPool(host='reward-svc', "
                "port=5000): Max retries exceeded with url: /get_reward (Caused by NameResolutionError("
                "\"Failed to resolve 'reward-svc' ([Errno -2] Name or service not known)\"))"
            ),
            "reward-svc",
        ),
        (
            (
                "aiohttp.client_exceptions.ClientConnectorDNSError: Cannot connect to host judge-svc:80"
                " ssl:default [Name or service not known]"
            ),
            "judge-svc",
        ),
    ],
)
def test_a_name_without_an_address_is_no_closed_port(text: str, host: str) -> None:
    """DNS is the cause; ports have nothing to do with it."""
    answer = found(text)
    assert answer.key == "host name"
    assert answer.cause == f"a host name has no address on this node ({host})"
    assert "port" not in answer.what_to_do


def test_a_hub_whose_name_does_not_resolve_stays_the_hub() -> None:
    """The name is right; the way out of the pod is missing."""
    text = (
        'requests.exceptions.ConnectionError: (MaxRetryError("HTTPSConnectionPool(host='
        "'huggingface.co', port=443): Max retries exceeded with url: /x (Caused by "
        "NameResolutionError: Failed to resolve 'huggingface.co' ([Errno -3] Temporary failure "
        'in name resolution)"))'
    )
    assert found(text).key == "hub not reached"


@pytest.mark.parametrize(
    "text",
    [
        (
            "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions"
            " before calling NumCudaDevices() that might have already set an error? Error 802: system "
            "not yet initialized"
        ),
        "torch.AcceleratorError: CUDA error: system not yet initialized",
    ],
)
def test_error_802_is_the_fabric_manager(text: str) -> None:
    """The GPUs are there; their switches are not set up."""
    answer = found(text)
    assert answer.key == "fabric manager"
    assert "nvidia-fabricmanager" in answer.what_to_do


def test_a_v100_needs_another_dtype() -> None:
    """The GPU has no bfloat16: no build of torch changes that."""
    answer = found(
        "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. "
        "Your Tesla V100-SXM2-32GB GPU has compute capability 7.0. You can use float16 instead"
    )
    assert answer.key == "bfloat16"
    assert "float16" in answer.what_to_do
    assert "image" not in answer.what_to_do


@pytest.mark.parametrize(
    ("text", "setting", "other"),
    [
        (
            "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
            "mem_fraction_static",
            "raise its gpu_memory_utilization",
        ),
        (
            (
                "ValueError: No available memory for the cache blocks. Try increasing "
                "`gpu_memory_utilization` when initializing the engine."
            ),
            "gpu_memory_utilization",
            "mem_fraction_static",
        ),
        (
            (
                "RuntimeError: The memory capacity is unbalanced. Some GPUs may be occupied by other "
                "processes. pre_model_load_memory=21.4, local_gpu_memory=78.6"
            ),
            "processes",
            "gpu_memory_utilization",
        ),
        (
            (
                "ValueError: Free memory on device cuda:0 (31.2/79.1 GiB) on startup is less than "
                "desired GPU memory utilization (0.9, 71.2 GiB)."
            ),
            "gpu_memory_utilization",
            "mem_fraction_static",
        ),
        (
            (
                '  File "/x/sglang/srt/mem_cache/memory_pool.py", line 9, in _create_buffers\n    x\n'
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
            ),
            "mem_fraction_static",
            "Lower its gpu_memory_utilization",
        ),
    ],
)
def test_a_remedy_names_the_setting_of_its_engine(text: str, setting: str, other: str) -> None:
    """SGLang's setting for SGLang, vLLM's for vLLM."""
    answer = found(text)
    assert setting in answer.what_to_do
    assert other not in answer.what_to_do


@pytest.mark.parametrize(
    ("text", "cause", "advice"),
    [
        (
            (
                "ValueError: The checkpoint you are trying to load has model type `qwen3` but "
                "Transformers does not recognize this architecture."
            ),
            "the installed transformers does not know this model (qwen3)",
            "newer transformers",
        ),
        (
            (
                "ValueError: Model architectures ['Qwen3ForCausalLM'] are not supported for now. "
                "Supported architectures:"
            ),
            "the installed vLLM does not know the model's architecture (Qwen3ForCausalLM)",
            "newer vLLM",
        ),
        (
            "ValueError: 'aimv2' is already used by a Transformers config, pick another name.",
            "the installed transformers is newer than the vLLM",
            "older transformers",
        ),
        (
            "AttributeError: Qwen2Tokenizer has no attribute all_special_tokens_extended",
            "the installed transformers is newer than the vLLM",
            "older transformers",
        ),
        (
            (
                "ImportError: tokenizers>=0.21,<0.22 is required for a normal functioning of this "
                "module, but found tokenizers==0.20.3."
            ),
            "transformers needs tokenizers>=0.21,<0.22, and tokenizers==0.20.3 is installed",
            "pip install",
        ),
        (
            "Exception: data did not match any variant of untagged enum ModelWrapper at line 7",
            "the installed tokenizers cannot read the model's tokenizer.json: mostly it is older",
            "newer tokenizers",
        ),
        (
            "ImportError: cannot import name 'AutoModelForVision2Seq' from 'transformers' (/x)",
            "the installed transformers does not have AutoModelForVision2Seq",
            "older transformers",
        ),
    ],
)
def test_a_misfit_of_versions_names_the_older_side(text: str, cause: str, advice: str) -> None:
    """Where the line shows which package is behind, the remedy says which to change."""
    answer = found(text)
    assert answer.cause.startswith(cause)
    assert advice in answer.what_to_do


MISSES = [
    tuple(line.split(" :: ", 1))
    for line in (Path(__file__).parents[2] / "data" / "near_misses.txt").read_text().splitlines()
    if not line.startswith("#")
]


@pytest.mark.parametrize(
    ("key", "line"), MISSES, ids=[f"{k}-{n}" for n, (k, _) in enumerate(MISSES)]
)
def test_a_near_miss_is_not_that_cause(key: str, line: str) -> None:
    """Neither at the end of a run nor while it runs."""
    assert key in table()
    assert found(line).key != key
    assert key not in [known.key for known in find_known_lines([line])]


LONGEST_SENTENCE = 205  # with the log's name, the node and the rank it has 240 characters at most


def test_each_row_fits_into_a_sentence() -> None:
    """What happened and what to do stand before the quoted line, in at most 240 characters."""
    long = [
        (row.key, len(row.cause) + len(row.what_to_do) + 2)
        for row in table().values()
        if len(row.cause) + len(row.what_to_do) + 2 > LONGEST_SENTENCE
    ]
    assert long == []


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("verl", "actor_rollout_ref.rollout.gpu_memory_utilization"),
        ("openrlhf", "--vllm.gpu_memory_utilization"),
        ("trl", "vllm_gpu_memory_utilization"),
        ("", "raise gpu_memory_utilization"),
    ],
)
def test_a_remedy_has_the_names_of_the_runs_framework(name: str, setting: str) -> None:
    """Where a recipe runs, its own setting is named, and no other framework's."""
    framework = framework_named(name)
    sentence = framework.in_own_words(table()["KV cache"].what_to_do)
    assert setting in sentence
    prompts = framework.in_own_words(table()["prompt too long"].what_to_do)
    assert ("data.filter_overlong_prompts" in prompts) is (name in {"verl", ""})
    if name:
        sglang = framework.in_own_words(table()["KV cache of SGLang"].what_to_do)
        assert "in verl" not in sglang
    assert framework.in_own_words("Look at the log") == "Look at the log"


LONG_VALUES = {
    "path": "/mnt/lustre/team-posttraining/checkpoints/qwen3-235b-grpo/run-2026-11-26/global_step_1200",
    "peer": "ip-10-128-254-117.us-west-2.compute.internal",
    "host": "rollout-server-headless.reinforcement-learning.svc.cluster.local",
    "why": "Requested node configuration is not available in this partition",
    "most": "95",
    "has": "3.20.3",
    "needs": "6.31.1",
    "version": "3.12",
    "user": "huggingface_hub",
    "package": "transformer_engine",
    "owner": "ActorRolloutRefArguments",
    "status": "500",
    "reason": "Internal Server Error",
    "port": "30000",
    "module": "vllm.model_executor.layers.quantization",
    "difference": "missing 1 required positional argument: 'config'",
    "field": "engine_kwargs.vllm",
}
LONG_VALUE = "actor_rollout_ref.rollout.engine_kwargs.vllm.disable_log_requests_of_all_ranks"


@pytest.mark.parametrize("row", [row for row in table().values() if row.kind == "cause"])
def test_a_sentence_with_long_names_can_be_read(row: Row) -> None:
    """With long paths, hosts and keys: at most 240 characters, with something to do in it."""
    names = re.findall(r"\{(\w+)\}", row.cause + row.what_to_do)
    values = {name: short_name(LONG_VALUES.get(name, LONG_VALUE)) for name in names}
    diagnosis = Diagnosis(
        line="the line",
        log="job.log",
        node="gpu-pool-h100-worker-127",
        rank=1023,
        row=row,
        cause=row.cause.format(**values),
        what_to_do=row.what_to_do.format(**{**values, "reward_url": "http://10.128.254.117:8000"}),
    )
    said = diagnosis.remedy().partition(" It shows in ")[0]
    assert len(said) <= 240
    assert len(said) > len(diagnosis.cause) + 40, "no room for what to do"


def test_a_long_name_keeps_its_beginning_and_its_end() -> None:
    """The middle of a path shows least."""
    path = LONG_VALUES["path"]
    answer = found(f"PermissionError: [Errno 13] Permission denied: '{path}'")
    assert "(/mnt/lustre/team-po…" in answer.cause
    assert path[-40:] in answer.cause


@pytest.mark.parametrize("status", ["400 Client Error: Bad Request", "413 Client Error: Too Large"])
@pytest.mark.parametrize("client", ["huggingface_hub/utils/_http.py", "wandb/sdk/x.py"])
def test_a_server_that_answers_is_reached(client: str, status: str) -> None:
    """An answer with a status is no network fault."""
    text = (
        f'Traceback (most recent call last):\n  File "/x/site-packages/{client}", line 4, in f\n'
        f"    raise\nrequests.exceptions.HTTPError: {status} for url: https://example.org/x"
    )
    assert "reached" not in found(text).cause


def test_what_stands_before_a_traceback_is_not_near_its_error() -> None:
    """Other lines of the job name many services; the frames show which one was asked."""
    ordinary = "reward/mean: 0.3\nthe judge and the verifier are ready"
    refused = (
        'Traceback (most recent call last):\n  File "/x/train.py", line 4, in upload\n    f()\n'
        "requests.exceptions.ConnectionError: HTTPConnectionPool(host='10.0.0.7', port=80): refused"
    )
    assert found(f"{ordinary}\n{refused}").key != "reward server"
