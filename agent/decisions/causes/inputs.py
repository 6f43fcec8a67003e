"""Rows for what a job is given: settings, batches and data."""

from __future__ import annotations

from agent.decisions.causes.row import Cause, Words

_DATA_FRAMES = (
    r"dataset|data_utils|collat|tokenize|preprocess|_build_messages|prompt_key|input_key|label_key"
    r"|data_process|apply_chat|example\b|examples\b|feature\[|features\[|sample\[|row\[|item\["
    r"|doc\[|batch\[|arrow_dataset|dataframe"
)

SETTINGS: tuple[Cause, ...] = (
    Cause(
        "heads",
        ("heads_not_divisible",),
        "the number of attention heads does not divide by the tensor parallel (or Ulysses) size",
        "Choose a size that divides the model's heads (and key-value heads): 1, 2, 4 …",
        (
            Words(
                "attention heads (",
                "Value error, Total number of attention heads (12) must be divisible by tensor parallel size (8).",
            ),
            Words(
                "eads",
                "AssertionError: num_attention_heads 28 must be divisible by ulysses_sequence_parallel_size 8",
                only=r"(?i)\b\w*heads?\w*\b.{0,160}(?:divisible|multiple of|% )|(?:divisible|multiple of|not divide).{0,100}\bheads?\b",
                unless="(?i)batch|warning",
            ),
            Words(
                "is not divisible by",
                "AssertionError: 28 is not divisible by 8",
                only=r"(?:^|AssertionError: )\W{0,8}\d+ is not divisible by \d+",
                near=r"parallel|divide|QKV|linear\.py|heads|layers/",
            ),
            Words(
                "ensor parallel size",
                "ValueError: hidden_size 3584 is not divisible by tensor parallel size 3",
                error=True,
                only=r"(?i)divisib|divisib.*tensor parallel size",
            ),
            Words(
                "tensor_model_parallel_size",
                "AssertionError: num_heads is not divisible by tensor_model_parallel_size",
                only=r"(?i)divisib",
            ),
            Words(
                "tp_size",
                "AssertionError: self.total_num_heads % tp_size == 0",
                only=r"(?i)head.*(?:divisib|%)|(?:divisib|%).*head",
            ),
        ),
        ("MIV-XJTU/FSDrive#21", "vllm-project/vllm#2652", "vllm: vllm/config/model.py"),
    ),
    Cause(
        "batch",
        ("batch_not_divisible",),
        "a batch size does not divide by the number of GPUs, mini-batches or generations",
        "Choose batch sizes that divide: batch × samples by the GPUs, mini-batch by the ranks, and "
        "micro × accumulation × ranks = batch",
        (
            Words(
                "only support equal chunk",
                "AssertionError: only support equal chunk. Got size of DataProto 2 and chunk 4.",
            ),
            Words(
                "real_train_batch_size",
                "AssertionError: real_train_batch_size (10) must be divisible by total n_gpus (4).",
            ),
            Words(
                "Check batch related parameters",
                "AssertionError: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * world_size 256 != 2 * 18 * 7",
            ),
            Words(
                "train batch size (",
                "ValueError: The global train batch size (3 x 1) must be evenly divisible by the number of generations per prompt (8).",
            ),
            Words(
                "evenly divisible by the number of generations",
                "ValueError: The global eval batch size (3 x 1) must be evenly divisible by the number of generations per prompt (8).",
            ),
            Words(
                "atch",
                "ValueError: generation_batch_size (6) must be divisible by the global batch size (4).",
                only=r"(?i)batch.{0,160}(?:divisible|divide|multiple of)|(?:divisible|divided? by|multiple of).{0,120}batch",
                unless="(?i)warning|INFO|round",
            ),
            Words(
                "atch",
                "AssertionError: micro_batch_size should be smaller than mini_batch_size",
                error=True,
                only=r"(?i)(?:mini|micro|train|global|rollout|generation)_?\s?batch\w*.{0,80}(?:must be (?:>=|larger|greater|smaller|at least|equal)|should be (?:>=|larger|greater|smaller)|!=|not equal|less than|smaller than|larger than)",
            ),
            Words(
                "num_generations",
                "ValueError: per_device_train_batch_size * num_processes must be divisible by num_generations",
                only="(?i)divisib",
            ),
            Words(
                "DataProto",
                "AssertionError: DataProto of 30 cannot be split in 8",
                only=r"(?i)(?:chunk|split|divisib|size)",
            ),
            Words(
                "not divisible by",
                "ValueError: 10 rollouts are not divisible by 4 GPUs",
                error=True,
                only=r"(?i)(?:gpu|world|dp|rank|rollout|sample|prompt|worker|n_gpus|data.parallel)",
            ),
            Words(
                "must be divisible by",
                "AssertionError: num_prompts must be divisible by dp_size",
                error=True,
                only=r"(?i)(?:gpu|world|\bdp|rank|rollout|sample|prompt|worker|data.parallel)",
            ),
        ),
        (
            "verl-project/verl#473",
            "OpenRLHF/OpenRLHF#346",
            "huggingface/open-r1#236",
            "PRIME-RL/TTRL#43",
            "huggingface/trl#2876",
        ),
    ),
    Cause(
        "configuration key",
        ("config_key",),
        "the configuration has a key that this version lacks, or lacks one that it needs ({key})",
        "Look for the key in the installed version's own configuration; `+key=` adds one, and a "
        "release may have renamed it",
        (
            Words(
                "is not in struct",
                "omegaconf.errors.ConfigAttributeError: Key 'actor' is not in struct",
            ),
            Words(
                "Could not override '",
                "Could not override 'actor_rollout_ref.rollout.gpu_memory_utilisation'.",
            ),
            Words(
                "Could not append to config",
                "Could not append to config. An item is already at 'trainer.nnodes'.",
            ),
            Words(
                "Could not delete from config",
                "Could not delete from config. 'trainer.x' does not exist.",
            ),
            Words("ConfigKeyError", "omegaconf.errors.ConfigKeyError: Missing key trainer"),
            Words(
                "ConfigAttributeError", "omegaconf.errors.ConfigAttributeError: Missing key nnodes"
            ),
            Words(
                "MissingMandatoryValue",
                "omegaconf.errors.MissingMandatoryValue: Missing mandatory value: x",
            ),
            Words(
                "InterpolationKeyError",
                "omegaconf.errors.InterpolationKeyError: Interpolation key 'data.x' not found",
            ),
            Words(
                "InterpolationResolutionError", "omegaconf.errors.InterpolationResolutionError: x"
            ),
            Words(
                "MissingConfigException",
                "hydra.errors.MissingConfigException: In 'ppo_trainer': Could not find 'actor/fsdp2'",
            ),
            Words("In '…: Could not find '", "In 'ppo_trainer': Could not find 'model@actor/xx'"),
            Words(
                "Cannot find primary config",
                "Cannot find primary config 'ppo_trainer'. Check that it's in your config search path.",
            ),
            Words(
                "ConfigCompositionException",
                "hydra.errors.ConfigCompositionException: Could not override",
            ),
            Words(
                "OverrideParseException",
                "hydra.errors.OverrideParseException: mismatched input '=' expecting <EOF>",
            ),
            Words("LexerNoViableAltException", "LexerNoViableAltException: trainer.x=a~b"),
            Words("ConfigTypeError", "omegaconf.errors.ConfigTypeError: x"),
            Words(
                "ValidationError: Value '",
                "omegaconf.errors.ValidationError: Value 'two' of type 'str' could not be converted to Integer",
            ),
            Words(
                "Extra inputs are not permitted",
                "  Extra inputs are not permitted [type=extra_forbidden, input_value=1, input_type=int]",
            ),
            Words(
                "extra fields not permitted",
                "  extra fields not permitted (type=value_error.extra)",
            ),
            Words(
                "got an unexpected keyword argument",
                "TypeError: FSDPActorConfig.__init__() got an unexpected keyword argument 'ulysses_size'",
                only=r"(?:Config|Args|Arguments|Params|Options|config)\w*\.?(?:__init__)?\(\) got an unexpected",
            ),
            Words(
                "__init__() got an unexpected keyword argument",
                "TypeError: __init__() got an unexpected keyword argument 'rollout_n'",
                near=r"(?i)config\.py|_config|Config\(|Args\(|omega_conf_to_dataclass|instantiate",
            ),
            Words("Unknown config key", "ValueError: Unknown config key: actor.foo"),
            Words(
                "nrecognized config",
                "ValueError: Unrecognized configuration key(s): foo",
                only="(?i)key|field|option|param",
                unless="class",
            ),
        ),
        ("verl-project/verl#331", "verl-project/verl#1929", "hydra-ecosystem/hydra#1912"),
        reads=r"(?:[Kk]ey(?:\(s\))?:? '?|override '|argument '|value: |find '|at ')(?P<key>[\w.@/-]+)",
    ),
    Cause(
        "argument",
        ("argument_unknown",),
        "the command line has an argument that this version lacks, or lacks one that it needs ({name})",
        "Look at the program's --help: a release may have renamed it",
        (
            Words(
                "unrecognized arguments",
                "train_ppo_ray.py: error: unrecognized arguments: --flash_attn",
            ),
            Words(
                "not used by the HfArgumentParser",
                "ValueError: Some specified arguments are not used by the HfArgumentParser: ['--x', '1']",
            ),
            Words(
                "keys are not used by the HfArgumentParser",
                "ValueError: Some keys are not used by the HfArgumentParser: ['x']",
            ),
            Words(
                "error: argument",
                "api_server.py: error: argument --dtype: invalid choice: 'x' (choose from 'auto')",
            ),
            Words(
                "the following arguments are required",
                "train.py: error: the following arguments are required: --model",
            ),
            Words(
                "ambiguous option",
                "train.py: error: ambiguous option: --max could match --max_len, --max_norm",
            ),
            Words("No such option", "Error: No such option: --foo Did you mean --for?"),
            Words("no such option", "train.py: error: no such option: --foo"),
            Words("Unrecognized options", "Unrecognized options: --foo"),
            Words("Unrecognized argument", "Unrecognized argument: --foo"),
            Words("unexpected extra argument", "Error: Got unexpected extra argument (foo)"),
            Words(
                "Unknown command line flag",
                "FATAL Flags parsing error: Unknown command line flag 'foo'",
            ),
            Words("unexpected argument '", "error: unexpected argument '--foo' found"),
            Words("Unknown argument", "ValueError: Unknown argument: --foo"),
            Words("unknown option", "bash: --foo: unknown option", only="--"),
            Words(
                "'Namespace' object has no attribute",
                "AttributeError: 'Namespace' object has no attribute 'vllm_enable_sleep'",
            ),
            Words(
                "object has no attribute",
                "AttributeError: 'ScriptArguments' object has no attribute 'beta'",
                only=r"AttributeError: '\w*(?:Arguments|Args|Options)' object has no attribute",
            ),
        ),
        ("allenai/open-instruct#620", "OpenRLHF/OpenRLHF#846", "vllm-project/vllm#18538"),
        reads=r"(?P<name>--[\w.-]+|(?<=attribute ')\w+|\[[^\]]{1,200}\])",
    ),
    Cause(
        "model length",
        (),
        "the configured length is greater than what the model was made for",
        "Lower max_model_len (prompt and response length), or set VLLM_ALLOW_LONG_MAX_MODEL_LEN=1",
        (
            Words(
                "is greater than the derived max_model_len",
                "ValueError: User-specified max_model_len (65536) is greater than the derived max_model_len (max_position_embeddings=32768",
            ),
        ),
        ("vllm: vllm/config/model.py",),
    ),
)

DATA: tuple[Cause, ...] = (
    Cause(
        "chat template",
        ("chat_template",),
        "the tokenizer has no chat template, or the template rejects the messages",
        "Use the instruct model or give a template; the messages must have the roles, and the order "
        "of roles, that the template wants",
        (
            Words(
                "chat_template is not set",
                "ValueError: Cannot use chat template functions because tokenizer.chat_template is not set and no template argument was passed!",
            ),
            Words(
                "Cannot use apply_chat_template",
                "ValueError: Cannot use apply_chat_template() because tokenizer.chat_template is not set",
            ),
            Words(
                "No chat template is set", "ValueError: No chat template is set for this tokenizer"
            ),
            Words(
                "does not have a chat template",
                "ValueError: This tokenizer does not have a chat template",
                unless="(?i)warning",
            ),
            Words(
                "default chat template is no longer allowed",
                "ValueError: As of transformers v4.44, default chat template is no longer allowed, so you must provide a chat template if the tokenizer does not define one.",
            ),
            Words(
                "jinja2.exceptions.",
                "jinja2.exceptions.TemplateError: Conversation roles must alternate user/assistant/user/assistant/...",
            ),
            Words("^TemplateError: ", "TemplateError: Conversation roles must alternate"),
            Words(
                "Conversation roles must alternate",
                "ValueError: Conversation roles must alternate user/assistant",
            ),
            Words("System role not supported", "TemplateError: System role not supported"),
            Words(
                "No user query found in messages", "TemplateError: No user query found in messages."
            ),
            Words(
                "Only user and assistant roles are supported",
                "TemplateError: Only user and assistant roles are supported!",
            ),
            Words(
                "no template argument was passed",
                "ValueError: this tokenizer has no template and no template argument was passed",
            ),
            Words(
                "string indices must be integers",
                "TypeError: string indices must be integers, not 'str'",
                near="chat_template",
            ),
        ),
        ("verl-project/verl#390", "FasterDecoding/Medusa#102", "unslothai/unsloth#334"),
    ),
    Cause(
        "data column",
        ("data_column",),
        "the data set lacks a column that the job names ({name})",
        "Compare the data's columns with the job's keys (prompt_key, input_key, label_key …)",
        (
            Words(
                "not in the dataset",
                "ValueError: Column name ['prompt'] not in the dataset. Current columns in the dataset: ['text']",
                only="(?i)column",
            ),
            Words(
                "KeyError: ",
                "KeyError: 'problem'",
                near=_DATA_FRAMES,
                only=r"KeyError: [\"']\w[\w .-]*[\"']|KeyError: \"?Column",
                unless=r"LOCAL_RANK|RANK|MASTER|HOME|_KEY'|ENV",
            ),
            Words(
                "olumn…does not exist",
                "ValueError: Column 'answer' does not exist in the data set",
                only="(?i)data|error",
            ),
            Words(
                "No match for FieldRef.Name",
                "pyarrow.lib.ArrowInvalid: No match for FieldRef.Name(prompt) in text: string",
            ),
            Words(
                "No columns in the dataset match the model's forward method signature",
                "ValueError: No columns in the dataset match the model's forward method signature.",
            ),
            Words(
                "All the data files must have the same columns",
                "datasets.exceptions.DatasetGenerationCastError: An error occurred. All the data files must have the same columns, but at some point there are 2 new columns",
            ),
            Words(
                "DatasetGenerationCastError",
                "datasets.exceptions.DatasetGenerationCastError: An error occurred while generating the dataset",
            ),
            Words("issing column", "ValueError: missing columns ['answer']", error=True),
            Words(
                "missing required column", "ValueError: dataset is missing required column 'prompt'"
            ),
            Words(
                "required column",
                "AssertionError: required columns not found: prompt",
                only="(?i)error.*(?:missing|not found)",
            ),
            Words(
                "None of [Index([",
                "KeyError: \"None of [Index(['prompt'], dtype='object')] are in the [columns]\"",
            ),
            Words(
                "dataset must …column",
                "ValueError: The dataset must contain a 'prompt' column",
                error=True,
            ),
        ),
        ("NOVAglow646/Monet#17", "OpenRLHF/OpenRLHF#860", "RLHFlow/RLHF-Reward-Modeling#6"),
        reads=r"(?:KeyError: |[Cc]olumns? (?:name )?|Name\()[\[(\"']*(?P<name>[\w. -]+)",
    ),
    Cause(
        "no data",
        ("data_empty",),
        "no data is left after filtering, or the data set is empty",
        "Look at the length limits that filter prompts, at the split's name and at the file itself",
        (
            Words(
                "but got num_samples=0",
                "ValueError: num_samples should be a positive integer value, but got num_samples=0",
            ),
            Words("dataloader is empty", "AssertionError: Train dataloader is empty!", error=True),
            Words(
                "corresponds to no data!", 'ValueError: Instruction "train" corresponds to no data!'
            ),
            Words("ataset is empty", "ValueError: The train dataset is empty", error=True),
            Words("mpty dataset", "ValueError: got an empty dataset", error=True),
            Words(
                "EmptyDatasetError",
                "datasets.exceptions.EmptyDatasetError: The directory at /x doesn't contain any data files",
            ),
            Words(
                "is out of bounds for size 0",
                "IndexError: Invalid key: 0 is out of bounds for size 0",
            ),
            Words(
                "out of bounds for axis 0 with size 0",
                "IndexError: index 0 is out of bounds for axis 0 with size 0",
                near=_DATA_FRAMES,
            ),
            Words(
                "at least one example when writing data",
                "SchemaInferenceError: Please pass `features` or at least one example when writing data",
            ),
            Words("no data left", "ValueError: no data left after filtering", error=True),
            Words(
                "No data found",
                "ValueError: No data found. Please verify arguments",
                only="(?i)error|verify",
            ),
            Words("no samples", "ValueError: the dataset has no samples", error=True),
            Words("No images with captions", "ValueError: No images with captions", error=True),
            Words("o valid data", "ValueError: no valid data in train.jsonl", error=True),
            Words("o training data", "ValueError: no training data", error=True),
        ),
        ("bmaltais/kohya_ss#2660", "pytorch: torch/utils/data/sampler.py"),
    ),
)

INPUTS = (*SETTINGS, *DATA)
