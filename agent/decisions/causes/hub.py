"""Rows for hubs of models and data, and for files of checkpoints and data."""

from __future__ import annotations

from agent.decisions.causes.row import NET, Cause, Words

_HUB = r"huggingface\.co|hf-mirror|hf\.co|modelscope|cdn-lfs|cas-bridge|xethub"
_CHECKPOINT = (
    r"(?i)checkpoint|ckpt|global_step|iter_\d|latest_checkpointed|/latest\b|mp_rank|zero_pp_rank"
    r"|pytorch_model|model-\d+-of|adapter_model|adapter_config|optimizer|optim_|rng_state|scheduler"
    r"|trainer_state|state_dict|distcp|full_state|\.safetensors|\.pth?\b|\.ckpt|\.bin\b|model_world"
    r"|extra_state|weights|resume|\.metadata"
)
_DATA = (
    r"(?i)\.parquet|\.jsonl?\b|\.arrow|\.csv|\.tsv|\.txt|\.npy|\.tar\b|\.gz\b|dataset|/data\b|/data/"
    r"|train|test|valid|\.idx|prompts|images?/|corpus"
)

HUB: tuple[Cause, ...] = (
    Cause(
        "rate limit",
        ("hub_rate_limited",),
        "the hub refused requests because there were too many",
        "Set HF_TOKEN on every pod, fetch the model once (AGENT_PREPARE) into a shared HF_HOME, and "
        "set HF_HUB_OFFLINE=1 for the job; or try again later",
        (
            Words(
                "429 Client Error",
                "HfHubHTTPError: 429 Client Error: Too Many Requests for url: https://huggingface.co/api/models/x",
            ),
            Words(
                "Too Many Requests",
                "HTTPStatusError: Client error '429 Too Many Requests' for url 'https://huggingface.co/x'",
                only=_HUB,
            ),
            Words(
                "rate limit",
                "HfHubHTTPError: We had to rate limit your IP (1.2.3.4).",
                only=r"(?i)hub|huggingface|your IP|hf",
            ),
            Words(
                "429",
                "HTTP Error 429 thrown while requesting GET https://huggingface.co/x",
                only=rf"\b429\b.*(?:{_HUB})",
            ),
        ),
        ("allenai/OLMo#550", "huggingface/datasets#7871"),
    ),
    Cause(
        "gated model",
        ("hub_gated",),
        "the model or data set is gated, and this account has no access yet",
        "Ask for access on its page, and set HF_TOKEN on every pod",
        (
            Words(
                "Cannot access gated repo",
                "Cannot access gated repo for url https://huggingface.co/google/gemma-3/resolve/main/config.json.",
            ),
            Words(
                "trying to access a gated repo",
                "OSError: You are trying to access a gated repo.",
                unless="private or gated",
            ),
            Words("GatedRepoError", "huggingface_hub.errors.GatedRepoError: 403 Client Error."),
            Words(
                "Access to model …is restricted",
                "Access to model meta-llama/Llama-3.1-8B is restricted and you are not in the authorized list.",
            ),
            Words(
                "Access to dataset …is restricted",
                "Access to dataset cais/hle is restricted. You must have access to it",
            ),
            Words(
                "is a gated dataset on the Hub",
                "DatasetNotFoundError: Dataset 'cais/hle' is a gated dataset on the Hub.",
            ),
            Words(
                "awaiting a review from the repo authors",
                "Your request to access model x is awaiting a review from the repo authors.",
            ),
            Words(
                "not in the authorized list",
                "you are not in the authorized list. Visit https://huggingface.co/x to ask for access.",
            ),
            Words(
                "403 Client Error: Forbidden",
                "HTTPError: 403 Client Error: Forbidden for url: https://huggingface.co/x",
                only=_HUB,
            ),
            Words(
                "401 Client Error: Unauthorized",
                "HTTPError: 401 Client Error: Unauthorized for url: https://huggingface.co/meta-llama/x/resolve/main/config.json",
                only=_HUB,
            ),
        ),
        ("huggingface/trl#4282", "ariG23498/gemma3-object-detection#5"),
    ),
    Cause(
        "no such model",
        ("hub_not_found",),
        "the model or data set is not there, or is private",
        "Correct AGENT_MODEL or the data's name, or set HF_TOKEN on every pod",
        (
            Words(
                "Repository Not Found for url",
                "Repository Not Found for url: https://huggingface.co/api/models/x/y.",
            ),
            Words(
                "RepositoryNotFoundError",
                "huggingface_hub.errors.RepositoryNotFoundError: 404 Client Error.",
            ),
            Words(
                "is not a valid model identifier",
                "OSError: qwen is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'",
            ),
            Words(
                "is not a local folder and is not",
                "OSError: /models/x is not a local folder and is not a valid model",
            ),
            Words(
                "EntryNotFoundError",
                "huggingface_hub.errors.EntryNotFoundError: 404 Client Error.",
                unless="LocalEntryNotFoundError",
            ),
            Words(
                "Entry Not Found for url",
                "Entry Not Found for url: https://huggingface.co/x/resolve/main/config.json.",
            ),
            Words(
                "RevisionNotFoundError",
                "huggingface_hub.errors.RevisionNotFoundError: 404 Client Error.",
            ),
            Words(
                "Revision Not Found for url",
                "Revision Not Found for url: https://huggingface.co/x/resolve/v9/config.json.",
            ),
            Words(
                "is not a valid git identifier",
                "OSError: v9 is not a valid git identifier (branch name, tag name or commit id) that exists",
            ),
            Words(
                "doesn't exist on the Hub",
                "datasets.exceptions.DatasetNotFoundError: Dataset 'x/y' doesn't exist on the Hub or cannot be accessed.",
            ),
            Words(
                "Repo id must",
                "HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/data/models/x'. Use `repo_type` argument if needed.",
            ),
            Words(
                "Incorrect path_or_model_id",
                "OSError: Incorrect path_or_model_id: '/models/qwen'. Please provide either the path to a local folder or the repo_id of a model on the Hub.",
            ),
            Words(
                "Can't load the configuration of",
                "OSError: Can't load the configuration of '/models/x'. If you were trying to load it from 'https://huggingface.co/models', make sure",
            ),
            Words(
                "Can't load tokenizer for",
                "OSError: Can't load tokenizer for '/models/x'. If you were trying to load it from",
            ),
            Words(
                "Can't load the model for",
                "OSError: Can't load the model for 'x/y'. If you were trying to load it from",
            ),
            Words(
                "Can't load feature extractor for",
                "OSError: Can't load feature extractor for 'x/y'.",
            ),
            Words(
                "Invalid repository ID or local directory",
                "ValueError: Invalid repository ID or local directory specified: '/models/x'",
            ),
            Words(
                "does not appear to have a file named",
                "OSError: /models/x does not appear to have a file named config.json.",
                unless=r"named (?:pytorch_model|model\.safetensors|adapter|.*safetensors|.*\.bin)",
            ),
            Words(
                "Unrecognized model in",
                "ValueError: Unrecognized model in /models/x. Should have a `model_type` key in its config.json",
            ),
            Words(
                "404 Client Error: Not Found for url",
                "requests.exceptions.HTTPError: 404 Client Error: Not Found for url: https://huggingface.co/x",
                only=_HUB,
            ),
            Words(
                "The request model: …does not exist",
                "ValueError: The request model: x/y does not exist!",
            ),
            Words(
                "Couldn't find a dataset script at",
                "FileNotFoundError: Couldn't find a dataset script at /w/x/x.py or any data file in the same directory. Couldn't find 'x' on the Hugging Face Hub either: FileNotFoundError",
            ),
            Words(
                "on the Hugging Face Hub either",
                "FileNotFoundError: Couldn't find 'x' on the Hugging Face Hub either",
            ),
        ),
        (
            "zjunlp/EasyEdit#476",
            "unitaryai/detoxify#99",
            "transformers: src/transformers/utils/hub.py",
        ),
    ),
    Cause(
        "hub not reached",
        ("hub_offline",),
        "the hub cannot be reached, and the files are not in the cache",
        "Open the way to the hub (HTTPS_PROXY, HF_ENDPOINT for a mirror), or fetch the files before "
        "(AGENT_PREPARE, HF_HOME on a volume)",
        (
            Words(
                "We couldn't connect to 'http",
                "OSError: We couldn't connect to 'https://huggingface.co' to load this file, couldn't find it in the cached files",
            ),
            Words(
                "Can't reach the Hub", "OSError: Can't reach the Hub and the files are not cached"
            ),
            Words(
                "LocalEntryNotFoundError",
                "huggingface_hub.errors.LocalEntryNotFoundError: An error happened while trying to locate the file on the Hub",
            ),
            Words(
                "trying to locate the file",
                "An error happened while trying to locate the files on the Hub and we cannot find the appropriate snapshot folder",
            ),
            Words(
                "Cannot find an appropriate cached snapshot folder",
                "LocalEntryNotFoundError: Cannot find an appropriate cached snapshot folder for the specified revision on the local disk and outgoing traffic has been disabled.",
            ),
            Words(
                "outgoing traffic has been disabled",
                "Cannot find the requested files in the disk cache and outgoing traffic has been disabled.",
            ),
            Words(
                "OfflineModeIsEnabled",
                "huggingface_hub.errors.OfflineModeIsEnabled: Cannot reach https://huggingface.co/x: offline mode is enabled.",
            ),
            Words(
                "offline mode is enabled",
                "ConnectionError: Cannot reach https://huggingface.co/api: offline mode is enabled.",
                unless="(?i)info|W&B",
            ),
            Words(
                "Offline mode is enabled",
                "ConnectionError: Offline mode is enabled.",
                unless="INFO",
            ),
            Words(
                "Couldn't reach ",
                "ConnectionError: Couldn't reach 'x/y' on the Hub (LocalEntryNotFoundError)",
                error=True,
            ),
            Words(
                "we cannot find the requested files",
                "ValueError: Connection error, and we cannot find the requested files in the cached path.",
            ),
            Words(
                "HTTPSConnectionPool(host='",
                "requests.exceptions.ConnectionError: (MaxRetryError(\"HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /x",
                only=rf"host='[^']*(?:{_HUB})[^']*', port=\d+\): (?:Max retries|Read timed out)|MaxRetryError",
            ),
            Words(
                "Failed to resolve 'huggingface.co'",
                "NameResolutionError: Failed to resolve 'huggingface.co' ([Errno -3] Temporary failure in name resolution)",
            ),
            Words(
                "Server Error",
                "HfHubHTTPError: 504 Server Error: Gateway Time-out for url: https://huggingface.co/api/models/x",
                only=rf"\b50\d Server Error.*(?:{_HUB})",
            ),
            Words(
                "make sure your computer is online",
                "ConnectionError: please make sure your computer is online",
                error=True,
            ),
            Words(
                "Network is unreachable",
                "httpx.ConnectError: [Errno 101] Network is unreachable",
                near=_HUB,
            ),
            Words(
                "rror",
                "httpx.ConnectError: _ssl.c:989: The handshake operation timed out",
                near=r"File \"[^\"\n]{0,200}(?:huggingface_hub|transformers/utils/hub|datasets/(?:load|utils|data_files))",
                error=True,
                only=NET,
            ),
            Words(
                "httpx.",
                "httpx.ReadTimeout: The read operation timed out",
                near=r"File \"[^\"\n]{0,200}(?:huggingface_hub|transformers/utils/hub|datasets/(?:load|utils|data_files))",
                error=True,
                only=NET,
            ),
            Words(
                "requests.exceptions.",
                'requests.exceptions.ReadTimeout: (ReadTimeoutError("x: Read timed out."))',
                near=r"File \"[^\"\n]{0,200}(?:huggingface_hub|transformers/utils/hub|datasets/(?:load|utils|data_files))",
                error=True,
                only=NET,
            ),
            Words(
                "name resolution",
                "httpx.ConnectError: [Errno -3] Temporary failure in name resolution",
                near=rf"{_HUB}|huggingface_hub|datasets/load",
            ),
        ),
        ("CASIA-LMC-Lab/FiLo#10", "alvinliu0/HumanGaussian#4", "huggingface_hub: file_download.py"),
    ),
)

CHECKPOINTS: tuple[Cause, ...] = (
    Cause(
        "checkpoint of other ranks",
        ("checkpoint_world_size",),
        "a checkpoint was saved with another number of ranks",
        "Resume with the number of GPUs (and parallel sizes) that saved it, convert the checkpoint, "
        "or start from its weights alone",
        (
            Words(
                "used a DP world size of",
                "ZeRORuntimeException: The checkpoint being loaded used a DP world size of 8 but the current world size is 16.",
            ),
            Words("ZeRORuntimeException", "deepspeed.runtime.zero.utils.ZeRORuntimeException: x"),
            Words(
                "with a new world size is not currently supported",
                "Automatic adjustment of ZeRO's optimizer state partitioning with a new world size is not currently supported.",
            ),
            Words(
                "orld size",
                "ValueError: the checkpoint has world size 8, but this job has 16",
                error=True,
                only=r"(?i)(?:(?:checkpoint|ckpt|saved|load|resum)\w*.{0,160}world.size|world.size.{0,160}(?:checkpoint|ckpt|saved|load|resum))",
            ),
            Words(
                "world_size",
                "AssertionError: saved world_size 8 != 16",
                error=True,
                only=r"(?i)(?:(?:checkpoint|ckpt|saved|load|resum)\w*.{0,160}world_size|world_size.{0,160}(?:checkpoint|ckpt|saved|load|resum))",
                unless=r"_world_size_\d",
            ),
            Words(
                "from checkpoint …is not equal to the input argument",
                "AssertionError: tensor_model_parallel_size value from checkpoint (4) is not equal to the input argument value (8).",
            ),
            Words(
                "parallel_size value from checkpoint",
                "AssertionError: pipeline_model_parallel_size value from checkpoint (4) is not equal",
            ),
            Words(
                "zero checkpoints paths are missing",
                "FileNotFoundError: The following zero checkpoints paths are missing: ['/ckpt/zero_pp_rank_8']",
            ),
            Words(
                "partition count",
                "AssertionError: partition count of the checkpoint 8 != 16",
                error=True,
            ),
            Words(
                "loading from a different number of",
                "RuntimeError: loading from a different number of ranks is not supported",
            ),
            Words(
                "number of ranks",
                "ValueError: checkpoint was saved with another number of ranks",
                only="(?i)(?:checkpoint|saved|load)",
            ),
        ),
        ("deepspeedai/DeepSpeed#6441", "deepspeedai/DeepSpeed#2898"),
    ),
    Cause(
        "shard of other ranks",
        ("checkpoint_world_size", "checkpoint_missing"),
        "either the checkpoint was saved with another number of ranks, or its shard is missing",
        "Resume with the number of GPUs that saved it, and look whether all nodes share its disk",
        (
            Words(
                "No such file or directory: '…model_world_size_",
                "FileNotFoundError: [Errno 2] No such file or directory: '/ckpt/global_step_50/actor/model_world_size_16_rank_9.pt'",
            ),
            Words(
                "No such file or directory: '…optim_world_size_",
                "FileNotFoundError: [Errno 2] No such file or directory: '/ckpt/actor/optim_world_size_16_rank_9.pt'",
            ),
            Words(
                "No such file or directory: '…zero_pp_rank_",
                "FileNotFoundError: [Errno 2] No such file or directory: '/ckpt/zero_pp_rank_9_mp_rank_00_optim_states.pt'",
            ),
        ),
        ("verl: verl/utils/checkpoint/fsdp_checkpoint_manager.py",),
    ),
    Cause(
        "checkpoint of other shapes",
        ("checkpoint_shape",),
        "a checkpoint has other shapes or names than the model",
        "Name the model that saved the checkpoint, with its tokenizer (size of the vocabulary), or "
        "start from an empty folder (AGENT_CHECKPOINTS)",
        (
            Words(
                "size mismatch for",
                "\tsize mismatch for lm_head.weight: copying a param with shape torch.Size([32101, 768]) from checkpoint, the shape in current model is torch.Size([32128, 768]).",
            ),
            Words(
                "Error(s) in loading state_dict for",
                "RuntimeError: Error(s) in loading state_dict for Qwen2ForCausalLM:",
            ),
            Words("Missing key(s) in state_dict", '\tMissing key(s) in state_dict: "a.weight".'),
            Words(
                "Unexpected key(s) in state_dict", '\tUnexpected key(s) in state_dict: "a.weight".'
            ),
            Words(
                "loaded state dict has a different number of parameter groups",
                "ValueError: loaded state dict has a different number of parameter groups",
            ),
            Words(
                "doesn't match the size of optimizer's group",
                "ValueError: loaded state dict contains a parameter group that doesn't match the size of optimizer's group",
            ),
            Words(
                "Attempted to load weight (",
                "AssertionError: Attempted to load weight (torch.Size([4096])) into parameter (torch.Size([2048]))",
            ),
            Words(
                "ignore_mismatched_sizes",
                "RuntimeError: You set `ignore_mismatched_sizes` to `False`, thus raising an error",
                error=True,
            ),
            Words(
                "Trying to set a tensor of shape",
                'ValueError: Trying to set a tensor of shape torch.Size([1]) in "weight" (which has shape torch.Size([2])), this looks incorrect.',
            ),
            Words(
                "Size mismatch between saved",
                "ValueError: Size mismatch between saved torch.Size([8]) and current: torch.Size([4]) for optim.x",
            ),
            Words(
                "Missing key in checkpoint state_dict",
                "RuntimeError: Missing key in checkpoint state_dict: model.x.",
            ),
            Words(
                "There is no module or parameter named",
                "ValueError: There is no module or parameter named 'lm_head' in Qwen2ForCausalLM",
            ),
        ),
        ("Jiuzhouh/PiVe#4", "huggingface/lerobot#1256", "pytorch: torch/nn/modules/module.py"),
    ),
    Cause(
        "checkpoint broken",
        ("checkpoint_corrupt",),
        "a checkpoint or weight file is incomplete or corrupt",
        "Remove the file (and the download's cache), and fetch it again, or resume from the "
        "checkpoint before",
        (
            Words(
                "PytorchStreamReader failed",
                "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
            ),
            Words(
                "Error while deserializing header",
                "safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge",
            ),
            Words(
                "^SafetensorError",
                "SafetensorError: Error while deserializing header: InvalidHeader",
            ),
            Words("safetensors_rust.SafetensorError", "safetensors_rust.SafetensorError: invalid"),
            Words("EOFError: Ran out of input", "EOFError: Ran out of input"),
            Words("invalid load key", "_pickle.UnpicklingError: invalid load key, 'v'."),
            Words(
                "pickle data was truncated", "_pickle.UnpicklingError: pickle data was truncated"
            ),
            Words(
                "UnpicklingError: ",
                "_pickle.UnpicklingError: unpickling stack underflow",
                unless="weights_only|Weights only",
            ),
            Words(
                "The file might be corrupted",
                "RuntimeError: unexpected EOF, expected 90 more bytes. The file might be corrupted.",
            ),
            Words(
                "invalid header or archive is corrupted",
                "RuntimeError: invalid header or archive is corrupted",
            ),
            Words(
                "file in archive is not in a subdirectory",
                "RuntimeError: file in archive is not in a subdirectory archive/: a",
            ),
            Words(
                "Unable to load weights from pytorch checkpoint file",
                "OSError: Unable to load weights from pytorch checkpoint file for '/x/pytorch_model.bin'",
            ),
            Words(
                "storage has wrong", "RuntimeError: storage has wrong byte size: expected 0 got 9"
            ),
            Words(
                "Consistency check failed: file should be of size",
                "OSError: Consistency check failed: file should be of size 9 but has size 8 (model.safetensors).",
            ),
            Words("BadZipFile", "zipfile.BadZipFile: File is not a zip file"),
            Words(
                "hecksum mismatch",
                "RuntimeError: Checksum mismatch for model.safetensors",
                error=True,
            ),
            Words(
                "JSONDecodeError",
                "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
                near=r"trainer_state|index\.json|checkpoint.*json|load_from_json|weight_map",
            ),
        ),
        ("datalab-to/marker#970", "open-mmlab/mmagic#876", "safetensors/safetensors#601"),
    ),
    Cause(
        "checkpoint missing",
        ("checkpoint_missing",),
        "a file of the checkpoint does not exist ({path})",
        "Look whether all nodes share the disk of the checkpoints (AGENT_CHECKPOINTS), and whether "
        "the last save was finished",
        (
            Words(
                "FileNotFoundError: ",
                "FileNotFoundError: [Errno 2] No such file or directory: '/ckpt/global_step_50/actor/optim.pt'",
                only=_CHECKPOINT,
                unless=r"\.parquet|\.jsonl|dataset|data file|'(?:gcc|g\+\+|cc|ninja)'",
            ),
            Words(
                "Error no file named",
                "OSError: Error no file named pytorch_model.bin, model.safetensors found in directory /ckpt/a.",
            ),
            Words(
                "does not appear to have a file named",
                "OSError: x/y does not appear to have a file named pytorch_model.bin or model.safetensors.",
            ),
            Words(
                "Can't find a valid checkpoint at",
                "ValueError: Can't find a valid checkpoint at /ckpt/checkpoint-40",
            ),
            Words(
                "No valid checkpoint found",
                "ValueError: No valid checkpoint found in output directory (/out)",
            ),
            Words(
                "heckpoint",
                "ValueError: Checkpoint path /ckpt/x does not exist",
                error=True,
                only=r"(?i)(?:checkpoint|ckpt).{0,200}(?:does not exist|doesn't exist|not found|missing|cannot be found|not a directory|no such)",
            ),
            Words(
                "Cannot find any model weights with",
                "RuntimeError: Cannot find any model weights with `/ckpt/a`",
            ),
            Words(
                "CheckpointException",
                "torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([0])",
            ),
            Words(
                "Can't find 'adapter_config.json'",
                "ValueError: Can't find 'adapter_config.json' at '/ckpt/lora'",
            ),
            Words(
                "No such file or directory: '",
                "OSError: [Errno 2] No such file or directory: '/ckpt/checkpoint-40/trainer_state.json'",
                error=True,
                only=rf"(?:{_CHECKPOINT[4:]})",
                unless=r"\.parquet|\.jsonl|dataset|\.so\b",
            ),
            Words(
                "No such file or directory (os error 2)",
                "No such file or directory (os error 2)",
                near=r"safe_open|safetensors",
            ),
        ),
        ("instructlab/training#666", "huggingface/accelerate#3010"),
        reads=r"(?P<path>/[^'\":,\s]+)",
    ),
    Cause(
        "data file",
        ("data_file",),
        "a data file or folder does not exist ({path})",
        "Correct the path, and look whether every node has it: AGENT_PREPARE_EACH fetches it on each",
        (
            Words(
                "Couldn't find any data file at",
                "FileNotFoundError: Couldn't find any data file at /mnt/train.parquet.",
            ),
            Words("Unable to find '", "FileNotFoundError: Unable to find '/data/train.parquet'"),
            Words(
                "any data file that matches",
                "FileNotFoundError: Unable to resolve any data file that matches '['**']' at /data/x",
            ),
            Words(
                "FileNotFoundError: ",
                "FileNotFoundError: [Errno 2] No such file or directory: '/data/gsm8k/train.parquet'",
                only=_DATA,
                unless=r"checkpoint|ckpt|config\.json|'(?:gcc|g\+\+|cc|ninja)'|\.py'|\.yaml'",
            ),
            Words(
                "^FileNotFoundError: Directory",
                "FileNotFoundError: Directory /data/x is neither a `Dataset` directory nor a `DatasetDict` directory.",
            ),
            Words(
                "No such file or directory: '",
                "OSError: [Errno 2] No such file or directory: '/data/x.jsonl'",
                error=True,
                only=rf"(?:{_DATA[4:]})",
                unless=r"\.so\b|\.py'",
            ),
            Words(
                "ata",
                "ValueError: Dataset path /data/x does not exist",
                error=True,
                only=r"(?i)\bdata\w*.{0,160}(?:does not exist|doesn't exist|not found|no such file)",
                unless="(?i)column|hub|key|package|metadata|checkpoint",
            ),
            Words(
                "could not open …for reading: No such file",
                "RuntimeError: Error in faiss::FileIOReader::FileIOReader: Error: 'f' failed: could not open /data/e5_Flat.index for reading: No such file or directory",
            ),
        ),
        ("FanqingM/MM-Eureka-V0#9", "YujunZhou/EVOL-RL#4", "datasets: src/datasets/load.py"),
        reads=r"(?P<path>/[^'\":,\s]+)",
    ),
)

FILES = (*HUB, *CHECKPOINTS)
