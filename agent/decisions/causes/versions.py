"""Rows for software that does not fit together: libraries, modules, compilers."""

from __future__ import annotations

from agent.decisions.causes.row import Cause, Weight, Words

_CUDA = (
    r"lib(?:cudart|cublas|cublasLt|cudnn\w*|cufft|curand|cusparse|cusparseLt|cusolver|nvrtc\S*|nccl"
    r"|nvJitLink|cupti|nvToolsExt|nvshmem\w*|cuda|nvinfer|npp\w*|cufile|nvidia-ml|torch_cuda"
    r"|c10_cuda|hiprtc|amdhip64|rccl)[.\w-]*\.so"
)

VERSIONS: tuple[Cause, ...] = (
    Cause(
        "CUDA library",
        ("cuda_library",),
        "a CUDA library of the version that a package needs is missing ({name})",
        "Take packages built for the image's CUDA (torch, vllm and flash-attn of one build), or an "
        "image with that CUDA; look at LD_LIBRARY_PATH",
        (
            Words(
                ".so…cannot open shared object file",
                "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory",
                only=_CUDA,
                unless="Plugin|NCCL INFO",
            ),
            Words(
                "Could not load library lib",
                "Could not load library libcudnn_cnn_train.so.8. Error: libcudnn_cnn_train.so.8: undefined symbol: _ZN5",
                only="cud|cub",
            ),
            Words(
                "Unable to load any of {lib",
                "Unable to load any of {libcudnn_cnn.so.9.1.0, libcudnn_cnn.so.9}",
            ),
            Words(
                "undefined symbol: ",
                "ImportError: libcusparse.so.12: undefined symbol: __nvJitLinkComplete_12_4, version libnvJitLink.so.12",
                only=r"undefined symbol: (?:__nvJitLink|nccl|cublas|cudnn|cuda[A-Z]|cusparse|cusolver|cu[A-Z]\w+|nvrtc|nvml|cufft)",
            ),
            Words("libnvJitLink.so…not found", "version `libnvJitLink.so.12' not found"),
            Words(
                "unable to compile cuda/cpp extensions without a matching cuda version",
                "CUDAMismatchException: >- DeepSpeed Op Builder: Installed CUDA version 11.8 does not match the version torch was compiled with 12.4, unable to compile cuda/cpp extensions without a matching cuda version.",
            ),
            Words(
                "mismatches the version that was used to compile",
                "RuntimeError: The detected CUDA version (11.8) mismatches the version that was used to compile PyTorch (12.4).",
            ),
            Words(
                "CUDA_HOME does not exist",
                "MissingCUDAException: CUDA_HOME does not exist, unable to compile CUDA op(s)",
            ),
            Words(
                "CUDA_HOME environment variable is not set",
                "OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root.",
                unless="(?i)warning",
            ),
            Words(
                "cuDNN version incompatibility",
                "RuntimeError: cuDNN version incompatibility: PyTorch was compiled against (9, 1, 0) but found runtime version (8, 9, 7).",
            ),
            Words(
                "VERSION_MISMATCH",
                "RuntimeError: cuDNN error: CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH",
                only="CUDNN|CUBLAS|NVRTC",
            ),
            Words(
                "CUDA Setup failed despite",
                "RuntimeError: CUDA Setup failed despite GPU being available.",
            ),
            Words(
                "Torch not compiled with CUDA enabled",
                "AssertionError: Torch not compiled with CUDA enabled",
            ),
            Words("cannot find -lcu", "/usr/bin/ld: cannot find -lcuda: No such file or directory"),
            Words(
                "nvcc: …not found",
                "/bin/sh: 1: /usr/local/cuda/bin/nvcc: not found",
                only=r"nvcc: (?:command )?not found",
            ),
            Words(
                "No such file or directory: …nvcc",
                "FileNotFoundError: [Errno 2] No such file or directory: '/usr/local/cuda/bin/nvcc'",
            ),
        ),
        ("vllm-project/vllm#52300", "vllm-project/vllm#1718", "DeepSpeed: op_builder/builder.py"),
        reads=r"(?P<name>lib[\w-]+\.so[.\d]*|CUDA_HOME|nvcc|CUDA version \S+|cuDNN)",
    ),
    Cause(
        "C library",
        ("glibc",),
        "the system's C or C++ library is older than a package needs ({name})",
        "Take a newer image, or a build of the package for this one (from source, or an older wheel)",
        (
            Words(
                "version `GLIBC_…not found",
                "ImportError: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.32' not found (required by /x.so)",
            ),
            Words(
                "version `GLIBCXX_…not found",
                "ImportError: libstdc++.so.6: version `GLIBCXX_3.4.29' not found (required by /x.so)",
            ),
            Words(
                "version `CXXABI_…not found",
                "ImportError: libstdc++.so.6: version `CXXABI_1.3.15' not found (required by /x.so)",
            ),
            Words("version 'GLIBC", "OSError: version 'GLIBC_2.34' not found", only="not found"),
        ),
        ("Dao-AILab/flash-attention#1762", "Dao-AILab/flash-attention#1708"),
        reads=r"(?P<name>(?:GLIBC|GLIBCXX|CXXABI)_[\d.]+)",
    ),
    Cause(
        "extension and torch",
        ("flash_attn_abi",),
        "a compiled extension does not match the installed torch ({name})",
        "Install the build of the extension for this torch, CUDA and Python (or build it from source "
        "with --no-build-isolation), or torch of the version that it was built for",
        (
            Words(
                "undefined symbol: _Z",
                "ImportError: /x/flash_attn_2_cuda.cpython-310-x86_64-linux-gnu.so: undefined symbol: _ZN3c104cuda9SetDeviceEi",
            ),
            Words(
                ".so: undefined symbol",
                "ImportError: /x/vllm/_C.abi3.so: undefined symbol: aoti_torch_x",
            ),
            Words(
                "symbol lookup error",
                "python: symbol lookup error: /x/libtorch_python.so: undefined symbol: PyObject_x",
            ),
            Words(
                "operator torchvision::nms does not exist",
                "RuntimeError: operator torchvision::nms does not exist",
            ),
            Words(
                "'_OpNamespace' '",
                "AttributeError: '_OpNamespace' '_C' object has no attribute 'silu_and_mul'",
                only="has no attribute",
            ),
            Words(
                "Could not load this library: ",
                "OSError: Could not load this library: /x/torchaudio/lib/libtorchaudio.so",
            ),
            Words(
                "Detected that PyTorch and torchvision were compiled with different CUDA",
                "RuntimeError: Detected that PyTorch and torchvision were compiled with different CUDA major versions.",
            ),
            Words(
                "Detected that PyTorch and TorchAudio were compiled with different CUDA",
                "RuntimeError: Detected that PyTorch and TorchAudio were compiled with different CUDA versions.",
            ),
            Words(
                "DSO that was compiled for", "ImportError: a DSO that was compiled for torch 2.4"
            ),
            Words(
                "flash_attn_2_cuda",
                "ModuleNotFoundError: No module named 'flash_attn_2_cuda'",
                only="No module named",
            ),
        ),
        (
            "Dao-AILab/flash-attention#966",
            "EleutherAI/gpt-neox#1079",
            "Dao-AILab/flash-attention#1612",
        ),
        reads=r"(?P<name>[\w.-]{1,80}\.so|torchvision|torchaudio|_OpNamespace' '\w+|flash_attn_2_cuda)",
    ),
    Cause(
        "version mismatch",
        ("ray_version",),
        "Ray or Python differ between nodes or between the job and its cluster, if only in the patch",
        "Use one image on all nodes, and the Python of that image for the job",
        (
            Words(
                "Version mismatch: The cluster was started with",
                "RuntimeError: Version mismatch: The cluster was started with:",
            ),
            Words(
                "Python minor versions differ between client and server",
                "RuntimeError: Python minor versions differ between client and server: client is 3.10.4, server is 3.11.2",
            ),
            Words(
                "incompatible with …erver",
                "RuntimeError: Client Ray installation incompatible with server",
                only="(?i)ray|client",
            ),
            Words(
                "Changing the ray version is not allowed",
                "RuntimeError: Changing the ray version is not allowed: current version: 2.44.0, expect version: 2.49.2",
            ),
            Words(
                "cannot import name '…from 'ray",
                "ImportError: cannot import name 'x' from 'ray._private.utils' (/x/ray/_private/utils.py)",
                unless="partially initialized|unknown location",
            ),
            Words(
                "module 'ray…has no attribute",
                "AttributeError: module 'ray._private' has no attribute 'x'",
                unless="partially initialized",
            ),
            Words(
                "This process on node …was started with",
                "This process on node 10.0.0.4 was started with:",
            ),
        ),
        (
            "ray-project/kuberay#154",
            "OpenRLHF/OpenRLHF#598",
            "Unakar/Logic-RL#30",
            "ray-project/ray#50511",
        ),
    ),
    Cause(
        "compiler",
        ("compiler_missing",),
        "a C compiler, or the headers of Python, are missing for code that is compiled at run time",
        "Install gcc, g++ and python3-dev (python3.X-dev of the job's Python) in the image, or name "
        "the compiler in CC and CXX",
        (
            Words(
                "Failed to find C compiler",
                "RuntimeError: Failed to find C compiler. Please specify via CC environment variable.",
            ),
            Words(
                "Python.h: No such file or directory",
                "cuda_utils.c:6:10: fatal error: Python.h: No such file or directory",
            ),
            Words(
                "No working C++ compiler found",
                "torch._inductor.exc.InvalidCxxCompiler: No working C++ compiler found in torch._inductor.config.cpp.cxx: (None, 'g++')",
            ),
            Words("InvalidCxxCompiler", "torch._inductor.exc.InvalidCxxCompiler: x"),
            Words(
                "No such file or directory: ",
                "FileNotFoundError: [Errno 2] No such file or directory: 'gcc'",
                only=r"'(?:/usr/bin/)?(?:gcc|g\+\+|cc|c\+\+|clang|clang\+\+|ninja|x86_64-linux-gnu-\w+)'",
            ),
            Words(
                "not found",
                "sh: 1: gcc: not found",
                only=r"\b(?:gcc|g\+\+|cc|c\+\+|ninja|x86_64-linux-gnu-gcc): (?:command )?not found",
            ),
            Words(
                "error: command '…failed",
                "error: command 'gcc' failed: No such file or directory",
                only=r"'\S{0,80}(?:gcc|g\+\+|cc)' failed",
            ),
            Words(
                "Ninja is required to load C++ extensions",
                "RuntimeError: Ninja is required to load C++ extensions",
            ),
            Words(
                "cuda_utils",
                "subprocess.CalledProcessError: Command '['/usr/bin/gcc', '/tmp/t/main.c', '-O3', '-shared', '-o', '/tmp/t/cuda_utils.so']' returned non-zero exit status 1.",
                only=r"gcc.*(?:non-zero exit status)",
            ),
            Words(
                "/usr/bin/gcc",
                "subprocess.CalledProcessError: Command '['/usr/bin/gcc', '/tmp/t/main.c', '-lcuda']' returned non-zero exit status 1.",
                only=r"returned non-zero exit status",
            ),
        ),
        (
            "vllm-project/vllm#2997",
            "vllm-project/vllm#15329",
            "triton: python/triton/runtime/build.py",
        ),
    ),
    Cause(
        "transformers",
        ("transformers_version",),
        "the installed transformers does not fit the framework, the engine or the model",
        "Install the version of transformers that the framework and the engine name in their "
        "requirements; a newer model needs a newer transformers",
        (
            Words(
                "cannot import name '…from 'transformers",
                "ImportError: cannot import name 'DeepseekV2Config' from 'transformers' (/x/transformers/__init__.py)",
            ),
            Words(
                "module 'transformers…has no attribute",
                "AttributeError: module 'transformers' has no attribute 'Qwen3ForCausalLM'",
            ),
            Words(
                "but Transformers does not recognize this architecture",
                "ValueError: The checkpoint you are trying to load has model type `qwen3` but Transformers does not recognize this architecture.",
            ),
            Words(
                "is required for a normal functioning of this module",
                "ImportError: tokenizers>=0.21,<0.22 is required for a normal functioning of this module, but found tokenizers==0.20.3.",
            ),
            Words(
                "Could not import module '",
                "ModuleNotFoundError: Could not import module 'PreTrainedModel'. Are this object's requirements defined correctly?",
            ),
            Words(
                "requirements defined correctly",
                "ModuleNotFoundError: Could not import module 'Qwen3Config'. Are this object's requirements defined correctly?",
            ),
            Words(
                "No module named 'transformers.",
                "ModuleNotFoundError: No module named 'transformers.models.qwen3'",
                unless="is not a package",
            ),
            Words(
                "already used by a Transformers config, pick another name",
                "ValueError: 'aimv2' is already used by a Transformers config, pick another name.",
            ),
            Words(
                "does not exist or is not currently imported",
                "ValueError: Tokenizer class Qwen3Tokenizer does not exist or is not currently imported.",
                only="okenizer|rocessor",
            ),
            Words(
                "Model architectures …are not supported for now",
                "ValueError: Model architectures ['Qwen3ForCausalLM'] are not supported for now. Supported architectures:",
            ),
            Words(
                "Model architectures …failed to be inspected",
                "ValueError: Model architectures ['Qwen3VLForConditionalGeneration'] failed to be inspected.",
            ),
            Words(
                "Transformers implementation is not compatible with vLLM",
                "ValueError: X has no vLLM implementation and the Transformers implementation is not compatible with vLLM.",
            ),
            Words(
                "`rope_scaling` must be a dictionary",
                "ValueError: `rope_scaling` must be a dictionary with two fields, `type` and `factor`, got {}",
            ),
            Words(
                "untagged enum ModelWrapper",
                "Exception: data did not match any variant of untagged enum ModelWrapper at line 757479 column 3",
            ),
            Words(
                "untagged enum PyPreTokenizerTypeWrapper",
                "Exception: data did not match any variant of untagged enum PyPreTokenizerTypeWrapper at line 40",
            ),
            Words(
                "KeyError: '", "KeyError: 'qwen3'", near=r"CONFIG_MAPPING|configuration_auto\.py"
            ),
            Words(
                "object has no attribute 'all_special_tokens_extended'",
                "AttributeError: Qwen2Tokenizer has no attribute object has no attribute 'all_special_tokens_extended'",
            ),
            Words(
                "has no attribute '",
                "AttributeError: 'Qwen2Config' object has no attribute 'rope_theta'",
                near=r"transformers/|vllm/|sglang/|trl/",
                only=r"'\w+(?:Config|Tokenizer|TokenizerFast|Processor|ForCausalLM|ForConditionalGeneration|Cache|Attention|Model)' object has no attribute|Tokenizer\w* has no attribute",
            ),
            Words(
                "got an unexpected keyword argument",
                "TypeError: Qwen2ForCausalLM.forward() got an unexpected keyword argument 'num_items_in_batch'",
                only=r"(?:ForCausalLM|Model|Trainer|Attention|Cache|Tokenizer\w*|Processor|from_pretrained|PreTrained\w+|compute_loss)\b[.\w]*(?:\(\))? got an unexpected|unexpected keyword argument '(?:tokenizer|num_items_in_batch|_attn_implementation|dtype|processing_class|attn_implementation|cache_position|past_key_value|position_embeddings)'",
            ),
            Words(
                "requires transformers",
                "ImportError: This version of x requires transformers>=4.51.0",
                only="(?i)requires transformers",
            ),
            Words(
                "transformers version",
                "AssertionError: transformers version must be >= 4.51",
                only=r"(?:Error|ssert).{0,80}transformers version",
            ),
            Words(
                "equires …transformers",
                "ImportError: vllm requires a newer transformers version",
                error=True,
                only=r"requires? .{0,20}transformers ?(?:[<>=!]|version|==)",
            ),
        ),
        (
            "vllm-project/vllm-ascend#2365",
            "deepseek-ai/DeepSeek-OCR#39",
            "transformers: src/transformers/utils/versions.py",
        ),
    ),
    Cause(
        "circular import",
        ("circular_import",),
        "modules import each other, or a file of the run has the name of an installed package ({name})",
        "Rename the file or folder that has a package's name, or start the job elsewhere than in its "
        "folder; otherwise install versions of the packages that fit together",
        (
            Words(
                "most likely due to a circular import",
                "ImportError: cannot import name 'X' from partially initialized module 'deepspeed.ops' (most likely due to a circular import) (/x.py)",
            ),
            Words(
                "from partially initialized module",
                "ImportError: cannot import name 'X' from partially initialized module 'x' (/x.py)",
            ),
            Words(
                "partially initialized module '",
                "AttributeError: partially initialized module 'torch' has no attribute 'nn'",
            ),
            Words(
                "has the same name as the standard library module",
                "AttributeError: module 'random' has no attribute 'x' (consider renaming '/w/random.py' since it has the same name as the standard library module",
            ),
            Words(
                "consider renaming '",
                "AttributeError: module 'numpy' has no attribute 'x' (consider renaming '/w/numpy.py' if it has the same name as a library you intended to import)",
            ),
            Words(
                "' is not a package",
                "ModuleNotFoundError: No module named 'datasets.load'; 'datasets' is not a package",
            ),
            Words(
                "(unknown location)",
                "ImportError: cannot import name 'LLM' from 'vllm' (unknown location)",
            ),
        ),
        ("OpenRLHF/OpenRLHF#1001", "JDAI-CV/CoTNet#17"),
        reads=r"(?:module|from) '(?P<name>[\w.]+)'",
    ),
    Cause(
        "missing module",
        ("module_missing",),
        "the job's Python lacks a module ({name})",
        "Install it in the image, or bring it by AGENT_PREPARE_EACH or AGENT_RUNTIME_ENV (pip); a "
        "module of the job's own code needs its folder in PYTHONPATH on every node",
        (
            Words(
                "^ModuleNotFoundError: No module named",
                "ModuleNotFoundError: No module named 'flash_attn'",
                unless="falling back|using torch",
            ),
            Words(
                "No module named",
                "(main_task pid=7) x.py:1: ModuleNotFoundError: No module named 'apex'",
                only=r"(?:ModuleNotFoundError\)?|ImportError|python[\d.]*): No module named|Error while finding module specification for",
                unless=r"(?i)could not load|falling back|\(\"No module|skip|optional",
            ),
            Words(
                "not found in your environment",
                "ImportError: This modeling file requires the following packages that were not found in your environment: einops. Run `pip install einops`",
                only="Error|requires",
            ),
            Words(
                "seems to be not installed",
                "ImportError: FlashAttention2 has been toggled on, but it cannot be used due to the following error: the package flash_attn seems to be not installed.",
            ),
            Words(
                "No package metadata was found for",
                "importlib.metadata.PackageNotFoundError: No package metadata was found for vllm",
            ),
            Words("PackageNotFoundError: ", "importlib.metadata.PackageNotFoundError: flash_attn"),
            Words(
                "^ImportError: ",
                "ImportError: vLLM is not available and `use_vllm` is set to True. Please install vLLM with `pip install vllm`",
                only=r"not (?:available|installed|found)|[Pp]lease (?:pip )?install|pip install|requires? (?:the )?[`'\w-]+ (?:library|package)|is required",
            ),
            Words(
                "^ValueError: ",
                "ValueError: Please install flash-attn to use flash attention",
                only=r"[Pp]lease install|is not installed|pip install",
            ),
            Words(
                "^RuntimeError: ",
                "RuntimeError: math-verify is not installed",
                only=r"[Pp]lease install|is not installed",
            ),
        ),
        ("OpenRLHF/OpenRLHF#400", "verl-project/verl#7320", "NVIDIA-NeMo/RL#662"),
        reads=r"(?:No module named|metadata was found for|specification for|package|install|Error:) '?(?P<name>[\w.-]+)",
    ),
)

WEIGHED_LESS: tuple[Cause, ...] = (
    Cause(
        "xFormers",
        ("flash_attn_abi",),
        "xFormers was built for another torch",
        "Install the xFormers of this torch",
        (
            Words(
                "xFormers can't load C++/CUDA extensions",
                "WARNING[XFORMERS]: xFormers can't load C++/CUDA extensions. xFormers was built for:",
                mild=True,
            ),
        ),
        ("xformers: xformers/_cpp_lib.py",),
        Weight.LAST,
        is_live=False,
    ),
)
