"""Rows for GPUs: their memory, their faults, and what this software cannot run on."""

from __future__ import annotations

from agent.decisions.causes.row import Cause, Weight, Words

_ENGINE = (
    r"vllm/(?:v1/)?(?:worker|engine|executor)/|profile_run|determine_available_memory"
    r"|determine_num_available_blocks|_initialize_kv_caches|capture_model|EngineCore"
    r"|engine/core\.py|core\.py:\d+\]|sglang/srt|mem_cache/memory_pool|cuda_graph_runner"
    r"|wake_up|initialize_cache|_allocate_kv_cache"
)
"""Frames of an inference engine's start."""

MEMORY: tuple[Cause, ...] = (
    Cause(
        "KV cache",
        ("kv_cache",),
        "the memory left for the engine's KV cache is too small for the configured length",
        "Lower the engine's maximum length (max_model_len, or prompt and response length), raise "
        "its gpu_memory_utilization, or give an engine more GPUs (tensor parallel size)",
        (
            Words(
                "No available memory for the cache blocks",
                "ValueError: No available memory for the cache blocks. Try increasing "
                "`gpu_memory_utilization` when initializing the engine.",
            ),
            Words(
                "larger than the maximum number of tokens that can be stored in KV cache",
                "ValueError: The model's max seq len (32768) is larger than the maximum number of "
                "tokens that can be stored in KV cache (9216). Try increasing",
            ),
            Words(
                "To serve at least one request with the model",
                "ValueError: To serve at least one request with the models's max seq len (40960), "
                "(5.62 GiB KV cache is needed, which is larger than the available KV cache memory",
            ),
            Words(
                "KV cache is needed, which is larger than the available KV cache memory",
                "(7.50 GiB KV cache is needed, which is larger than the available KV cache memory "
                "(3.11 GiB). Based on the available memory, the estimated maximum model length is",
            ),
            Words(
                "Not enough memory. Please try to increase --mem-fraction-static",
                "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
            ),
            Words(
                "Not enough memory. Please try increasing --mem-fraction-static",
                "RuntimeError: Not enough memory. Please try increasing --mem-fraction-static.",
            ),
            Words(
                "not enough to hold at least one sequence",
                "RuntimeError: the number of KV cache blocks is not enough to hold at least one "
                "sequence of max_model_len",
            ),
        ),
        (
            "vllm-project/vllm#5976",
            "vllm-project/vllm#14574",
            "vllm: vllm/v1/core/kv_cache_utils.py",
            "sglang: srt/model_executor/model_runner.py",
        ),
    ),
    Cause(
        "GPU memory of the engine",
        ("gpu_memory_engine",),
        "the inference engine found too little free GPU memory at its start",
        "Lower its gpu_memory_utilization (mem_fraction_static), end other processes on the GPU, "
        "or free the trainer's memory before the engine starts (offloading)",
        (
            Words(
                "Free memory on device…startup is less than desired GPU memory utilization",
                "ValueError: Free memory on device cuda:0 (31.2/79.1 GiB) on startup is less than "
                "desired GPU memory utilization (0.9, 71.2 GiB).",
            ),
            Words(
                "less than desired GPU memory utilization",
                "ValueError: Free memory on device (9.1/79.1 GiB) is less than desired GPU memory "
                "utilization (0.85)",
            ),
            Words(
                "The memory capacity is unbalanced",
                "RuntimeError: The memory capacity is unbalanced. Some GPUs may be occupied by "
                "other processes. pre_model_load_memory=21.4, local_gpu_memory=78.6",
            ),
            Words(
                "memory was not properly cleaned up before initializing",
                "AssertionError: Error in memory profiling. This happens when the GPU memory was "
                "not properly cleaned up before initializing the vLLM instance.",
            ),
            Words(
                "Error in memory profiling.",
                "AssertionError: Error in memory profiling. Initial free memory 60.1 GiB, current "
                "free memory 61.9 GiB. This happens when other processes sharing the same "
                "container release GPU memory",
            ),
            Words(
                "CUDA out of memory occurred when warming up sampler",
                "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy "
                "requests. Please try lowering `max_num_seqs` or `gpu_memory_utilization`",
            ),
            Words(
                "CUDA out of memory occurred when warming up pooler",
                "RuntimeError: CUDA out of memory occurred when warming up pooler with 64 dummy",
            ),
            Words(
                "Capture cuda graph failed: CUDA out of memory",
                "Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate",
            ),
            Words(
                "Capture CUDA graph failed: CUDA out of memory",
                "Exception: Capture CUDA graph failed: CUDA out of memory. Tried to allocate",
            ),
            Words(
                "OutOfMemoryError: CUDA out of memory",
                "(EngineCore_0 pid=71) ERROR 09-02 10:00:01 [core.py:700] "
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.5 GiB.",
                near=_ENGINE,
            ),
        ),
        (
            "vllm-project/vllm#20305",
            "ovg-project/kvcached#29",
            "vllm: vllm/v1/worker/gpu_worker.py, vllm/v1/worker/gpu_model_runner.py",
            "sglang: srt/model_executor/cuda_graph_runner.py",
        ),
    ),
    Cause(
        "GPU memory",
        ("gpu_memory",),
        "a GPU ran out of memory",
        "Take a smaller micro batch or context, a lower gpu_memory_utilization of the rollout "
        "engine, more GPUs, or offloading",
        (
            Words(
                "OutOfMemoryError: CUDA out of memory",
                "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
            ),
            Words(
                "RuntimeError: CUDA out of memory",
                "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 15.78 GiB",
            ),
            Words(
                "CUDA out of memory. Tried to allocate",
                "CUDA out of memory. Tried to allocate 384.00 MiB. GPU 3 has a total capacity of",
            ),
            Words(
                "out of memory",
                "CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:62",
                only=r"(?i)\b(?:cuda|hip|cublas|nccl|rocm)\w*\W.{0,60}out of memory",
                unless=r"(?i)to avoid|if you (?:see|get|run|encounter)|\bmay\b|\bmight\b|in case|prevent|can cause|could|consider",
            ),
            Words("CUDA error: out of memory", "RuntimeError: CUDA error: out of memory"),
            Words(
                "CUDA driver error: out of memory", "RuntimeError: CUDA driver error: out of memory"
            ),
            Words(
                "HIP out of memory", "torch.OutOfMemoryError: HIP out of memory. Tried to allocate"
            ),
            Words("HIP error: out of memory", "RuntimeError: HIP error: out of memory"),
            Words(
                "NPU out of memory", "RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB"
            ),
            Words(
                "XPU out of memory", "torch.OutOfMemoryError: XPU out of memory. Tried to allocate"
            ),
            Words("cudaErrorMemoryAllocation", "cudaErrorMemoryAllocation: out of memory"),
            Words(
                "CUDA_ERROR_OUT_OF_MEMORY",
                "CUDA call failed: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
            ),
            Words(
                "CUBLAS_STATUS_ALLOC_FAILED",
                "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(h)",
            ),
            Words(
                "Cuda failure…out of memory",
                "node1:10:20 [0] include/alloc.h:205 NCCL WARN Cuda failure 2 'out of memory'",
            ),
            Words(
                "Failed to CUDA calloc",
                "Failed to CUDA calloc async 608 bytes",
            ),
            Words("Failed to CUDA malloc", "Failed to CUDA malloc 4194304 bytes"),
            Words(
                "StandardGpuResources: alloc fail",
                "RuntimeError: Error in StandardGpuResourcesImpl::allocMemory: Error: 'err == "
                "cudaSuccess' failed: StandardGpuResources: alloc fail type IVFLists",
            ),
            Words(
                "StandardGpuResourcesImpl::allocMemory",
                "RuntimeError: Error in virtual void* faiss::gpu::StandardGpuResourcesImpl::"
                "allocMemory(const AllocRequest&) at StandardGpuResources.cpp:530: Error",
            ),
            Words(
                "RESOURCE_EXHAUSTED: Out of memory",
                "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes",
            ),
        ),
        (
            "verl-project/verl#2828",
            "OpenRLHF/OpenRLHF#398",
            "huggingface/trl#3044",
            "PeterGriffinJin/Search-R1#54",
            "pytorch: c10/cuda/CUDACachingAllocator.cpp",
            "nccl: src/include/alloc.h",
        ),
    ),
)

FAULTS: tuple[Cause, ...] = (
    Cause(
        "ECC",
        ("gpu_ecc",),
        "a GPU reported an uncorrectable memory error",
        "Reset or replace the GPU: change the machine",
        (
            Words(
                "uncorrectable ECC error encountered",
                "RuntimeError: CUDA error: uncorrectable ECC error encountered",
            ),
            Words("ECCUncorrectable", "cudaErrorECCUncorrectable: uncorrectable ECC error"),
            Words(
                "CUDA_ERROR_ECC_UNCORRECTABLE", "CUDA error code=214(CUDA_ERROR_ECC_UNCORRECTABLE)"
            ),
            Words(
                "An uncorrectable double bit error (DBE)",
                "NVRM: Xid (PCI:0000:3b:00): 48, An uncorrectable double bit error (DBE) has been",
            ),
            Words(
                "NVRM: Xid (PCI:",
                "NVRM: Xid (PCI:0000:0f:00): 95, pid=1, Uncontained ECC error",
                only=r"NVRM: Xid \(PCI:[^)]*\): (?:48|63|64|92|94|95)\b|\bECC\b|\bDBE\b",
            ),
        ),
        ("huggingface/trl#4149", "Time-Search/TimeSearch-R#9", "NVIDIA/semantic-segmentation#33"),
        Weight.ROOT,
    ),
    Cause(
        "Xid of a program",
        ("gpu_xid",),
        "the driver reported a fault of a program on a GPU (Xid {number})",
        "Look for the program's own error; if it comes back with other programs, change the machine",
        (
            Words(
                "NVRM: Xid (",
                "NVRM: Xid (PCI:0000:17:00): 31, pid=1234, name=python, MMU Fault: ENGINE GRAPHICS",
                only=r"NVRM: Xid \([^)]*\): (?:13|31|43|45|68|69)\b",
            ),
        ),
        ("nvidia: XID errors r555, chapter 3",),
        Weight.WEAK,
        reads=r"NVRM: Xid \([^)]*\): (?P<number>\d+)",
    ),
    Cause(
        "Xid",
        ("gpu_xid",),
        "a GPU reported a fault of its own (Xid {number})",
        "Change the machine",
        (
            Words(
                "NVRM: Xid (",
                "NVRM: Xid (PCI:0000:17:00): 79, pid=1234, GPU has fallen off the bus.",
            ),
            Words(
                "GPU has fallen off the bus",
                "NVRM: GPU at PCI:0000:17:00: GPU has fallen off the bus.",
            ),
            Words("SXid (PCI:", "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal"),
            Words(
                "Invalid access of peer GPU memory over nvlink or a hardware error",
                "RuntimeError: CUDA error: Invalid access of peer GPU memory over nvlink or a "
                "hardware error",
            ),
            Words("XID error detected", "health check: XID error detected on GPU 3: 119"),
        ),
        ("NVIDIA/open-gpu-kernel-modules#507", "Cyridd/cmpunlocker#4"),
        Weight.ROOT,
        reads=r"Xid \([^)]*\): (?P<number>\d+)",
    ),
    Cause(
        "driver and library",
        ("driver_too_old",),
        "the NVIDIA driver in the kernel and its libraries have different versions",
        "Reboot the host, or install the driver's libraries of the kernel's version",
        (
            Words(
                "Driver/library version mismatch",
                "Failed to initialize NVML: Driver/library version mismatch",
            ),
            Words(
                "API mismatch: the client has the version",
                "NVRM: API mismatch: the client has the version 550.54.15, but this kernel module "
                "has the version 535.161.08",
            ),
        ),
        ("NVIDIA/nvidia-docker#498", "nvidia: NVML return codes"),
    ),
    Cause(
        "NVML",
        ("gpu_lost",),
        "the container lost its GPUs ({why})",
        "Restart the pod or container; if it comes back, change the machine",
        (
            Words(
                "Failed to initialize NVML: Unknown Error",
                "Failed to initialize NVML: Unknown Error",
            ),
            Words(
                "Failed to initialize NVML",
                "Failed to initialize NVML: No supported GPUs were found",
            ),
            Words(
                "Unable to determine the device handle for",
                "Unable to determine the device handle for GPU0000:4B:00.0: Unknown Error",
            ),
            Words("GPU is lost", "pynvml.NVMLError_GpuIsLost: GPU is lost"),
            Words("NVMLError_Unknown", "pynvml.NVMLError_Unknown: Unknown Error"),
            Words("NVMLError_GpuIsLost", "pynvml.nvml.NVMLError_GpuIsLost"),
            Words("NVML Error: Unknown", "RuntimeError: NVML Error: Unknown"),
            Words(
                "cudaErrorDevicesUnavailable", "cudaErrorDevicesUnavailable: all devices are busy"
            ),
        ),
        ("NVIDIA/nvidia-container-toolkit#48", "Project-HAMi/HAMi#248"),
        reads=r"(?P<why>NVML: [\w /]+|GPU is lost|Unknown Error|NVMLError_\w+)",
    ),
    Cause(
        "duplicate GPU",
        ("duplicate_gpu",),
        "two ranks use the same GPU ({who})",
        "Give each rank its own GPU: unset CUDA_VISIBLE_DEVICES for the job, let no fewer GPUs be "
        "visible than ranks on a node, and use the local rank, not the global one",
        (
            Words(
                "Duplicate GPU detected",
                "init.cc:943 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA "
                "device 1000",
            ),
        ),
        ("verl-project/verl#161", "NVIDIA/nccl#1241"),
        reads=r"detected : (?P<who>rank \d+ and rank \d+)",
    ),
    Cause(
        "illegal access",
        ("illegal_access",),
        "a CUDA kernel accessed memory illegally",
        "Set CUDA_LAUNCH_BLOCKING=1 to see which kernel it is; another version of the engine's or "
        "attention's kernels often helps; on one node only, change the machine",
        (
            Words(
                "an illegal memory access was encountered",
                "RuntimeError: CUDA error: an illegal memory access was encountered",
            ),
            Words(
                "misaligned address",
                "RuntimeError: CUDA error: misaligned address",
                only="(?i)cuda|hip",
            ),
            Words("cudaErrorIllegalAddress", "cudaErrorIllegalAddress"),
            Words("CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA_ERROR_ILLEGAL_ADDRESS (700)"),
            Words(
                "unspecified launch failure",
                "torch.AcceleratorError: CUDA error: unspecified launch failure",
            ),
            Words(
                "Memory access fault by GPU", "Memory access fault by GPU node-4 on address 0x7f."
            ),
        ),
        ("vllm-project/vllm#28714", "pytorch: c10/cuda/CUDAException.cpp"),
    ),
)

BUILDS: tuple[Cause, ...] = (
    Cause(
        "GPU older than torch",
        ("gpu_architecture",),
        "the installed torch, or a library beside it, was not built for this kind of GPU",
        "Take an image whose torch and kernels support the GPU, or another kind of GPU",
        (
            Words(
                "no kernel image is available for execution on the device",
                "RuntimeError: CUDA error: no kernel image is available for execution on the device",
            ),
            Words("cudaErrorNoKernelImageForDevice", "cudaErrorNoKernelImageForDevice"),
            Words(
                "FlashAttention only supports Ampere GPUs or newer",
                "RuntimeError: FlashAttention only supports Ampere GPUs or newer.",
            ),
            Words(
                "FlashAttention-…only supports",
                "AssertionError: FlashAttention-3 only supports Hopper GPUs",
                only=r"(?i)GPU|sm_?\d|hopper|blackwell|ampere",
            ),
            Words(
                "Bfloat16 is only supported on GPUs with compute capability",
                "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least "
                "8.0. Your Tesla T4 GPU has compute capability 7.5.",
            ),
            Words(
                "is not supported for the current GPU. Minimum capability",
                "ValueError: The quantization method fp8 is not supported for the current GPU. "
                "Minimum capability: 89. Current capability: 80.",
            ),
            Words(
                "is not defined for option 'gpu-name'",
                "ptxas fatal   : Value 'sm_120a' is not defined for option 'gpu-name'",
            ),
            Words(
                "requires .target sm_",
                "ptxas /tmp/x.ptx, line 61; error   : Feature '.bf16' requires .target sm_80 or",
            ),
            Words(
                "Unknown CUDA arch (",
                "ValueError: Unknown CUDA arch (12.0) or GPU not supported",
            ),
            Words(
                "^…requires…compute capability",
                "ValueError: Type fp8e4nv not supported: it requires compute capability 8.9",
                error=True,
            ),
            Words(
                "type fp8e4nv not supported in this architecture",
                "AssertionError: type fp8e4nv not supported in this architecture. The supported",
            ),
        ),
        ("vllm-project/vllm#4604", "vllm-project/vllm#19906", "flash-attention: flash_api.cpp"),
    ),
    Cause(
        "GPU not known to torch",
        ("gpu_architecture",),
        "the installed torch was not built for this kind of GPU",
        "Take an image whose torch supports the GPU, or another kind of GPU",
        (
            Words(
                "is not compatible with the current PyTorch installation",
                "NVIDIA GeForce RTX 5080 with CUDA capability sm_120 is not compatible with the "
                "current PyTorch installation.",
                mild=True,
            ),
        ),
        ("vllm-project/vllm#19906",),
        Weight.WEAK,
    ),
    Cause(
        "driver older than CUDA",
        ("driver_too_old",),
        "the host's NVIDIA driver is older than the image's CUDA",
        "Choose hosts with a newer driver, or an image with an older CUDA",
        (
            Words(
                "CUDA driver version is insufficient",
                "RuntimeError: CUDA error: CUDA driver version is insufficient for CUDA runtime "
                "version",
            ),
            Words(
                "NVIDIA driver on your system is too old",
                "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).",
                unless="UserWarning",
            ),
            Words("cudaErrorInsufficientDriver", "cudaErrorInsufficientDriver"),
            Words(
                "forward compatibility was attempted on non supported HW",
                "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 804: forward "
                "compatibility was attempted on non supported HW",
            ),
            Words(
                "system has unsupported display driver / cuda driver combination",
                "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 803: system has "
                "unsupported display driver / cuda driver combination",
            ),
            Words(
                "unsatisfied condition: cuda",
                "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.4",
            ),
            Words(
                "unsatisfied condition: driver",
                "nvidia-container-cli: requirement error: unsatisfied condition: driver>=535",
            ),
            Words(
                "PTX was compiled with an unsupported toolchain",
                "CUDA error: the provided PTX was compiled with an unsupported toolchain.",
            ),
            Words("CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"),
        ),
        ("NVIDIA/nvidia-docker#498", "vllm-project/vllm#1369", "pytorch: torch/cuda/__init__.py"),
    ),
)

MISSING: tuple[Cause, ...] = (
    Cause(
        "no GPU",
        ("gpu_missing",),
        "a process sees no GPU, or fewer than it uses",
        "Compare `nvidia-smi` in the pod with the job's GPUs per node; look at CUDA_VISIBLE_DEVICES "
        "and at whether the actor asks Ray for a GPU",
        (
            Words("No CUDA GPUs are available", "RuntimeError: No CUDA GPUs are available"),
            Words("No HIP GPUs are available", "RuntimeError: No HIP GPUs are available"),
            Words("invalid device ordinal", "RuntimeError: CUDA error: invalid device ordinal"),
            Words("cudaErrorInvalidDevice", "cudaErrorInvalidDevice: invalid device ordinal"),
            Words(
                "no CUDA-capable device is detected",
                "RuntimeError: CUDA error: no CUDA-capable device is detected",
            ),
            Words("cudaErrorNoDevice", "cudaErrorNoDevice"),
            Words(
                "CUDA_ERROR_NO_DEVICE",
                "failed call to cuInit: CUDA_ERROR_NO_DEVICE",
                unless=r"stream_executor|xla",
            ),
            Words(
                "Found no NVIDIA driver on your system",
                "RuntimeError: Found no NVIDIA driver on your system. Please check that you have",
            ),
            Words(
                "you might not have a CUDA gpu",
                "RuntimeError: CUDA driver initialization failed, you might not have a CUDA gpu.",
            ),
            Words("Failed to infer device type", "RuntimeError: Failed to infer device type"),
            Words(
                "Attempting to deserialize object on",
                "RuntimeError: Attempting to deserialize object on CUDA device 7 but "
                "torch.cuda.device_count() is 4.",
            ),
            Words(
                "device < num_gpus",
                'RuntimeError: device >= 0 && device < num_gpus INTERNAL ASSERT FAILED at "CUDA"',
            ),
            Words("NVIDIA-SMI has failed", "NVIDIA-SMI has failed because it couldn't communicate"),
            Words("^No devices were found", "No devices were found"),
            Words(
                "no GPU resources available",
                "RuntimeError: Unable to proceed, no GPU resources available",
            ),
            Words(
                "is larger than the number of available GPUs",
                "ValueError: World size (8) is larger than the number of available GPUs (4) in this "
                "node.",
            ),
            Words(
                "Error 802: system not yet initialized",
                "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not "
                "yet initialized",
            ),
            Words(
                "Device string must not be empty", "RuntimeError: Device string must not be empty"
            ),
            Words(
                "o GPU",
                "RuntimeError: No GPU found. Please check CUDA_VISIBLE_DEVICES",
                only=r"(?i)(?:Error|Exception).{0,80}\bno (?:cuda |nvidia |available )?(?:gpus?|accelerators?)\b.{0,40}(?:found|detected|available|visible)",
                unless="current_node_resource",
            ),
            Words("AssertionError: Invalid device id", "AssertionError: Invalid device id"),
            Words("ValueError: CUDA is not available", "ValueError: CUDA is not available"),
            Words(
                "not enough GPUs",
                "ValueError: not enough GPUs on this node: 4 of 8",
                error=True,
            ),
            Words("DeviceCountError", "DeviceCountError: expected 8 GPUs, found 7"),
            Words(
                "but only…GPUs",
                "AssertionError: 8 processes requested, but only 4 GPUs are visible",
                error=True,
                only=r"\bonly \d+ (?:\w+ )?GPUs? (?:are |is )?(?:available|visible|found)",
            ),
        ),
        ("OpenRLHF/OpenRLHF#536", "OpenRLHF/OpenRLHF#912", "pytorch: c10/cuda/CUDAFunctions.cpp"),
    ),
    Cause(
        "GPU not usable",
        ("gpu_missing", "gpu_lost"),
        "either a process sees no GPU, or the container lost it",
        "Run `nvidia-smi` in the pod, and restart the pod; look at CUDA_VISIBLE_DEVICES",
        (
            Words(
                "CUDA unknown error",
                "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up "
                "environment, e.g. changing env variable CUDA_VISIBLE_DEVICES after program start.",
            ),
            Words(
                "busy or unavailable",
                "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
                only="(?i)cuda",
            ),
            Words(
                "setup doesn't support bf16/gpu",
                "ValueError: Your setup doesn't support bf16/gpu. You need torch>=1.10, using Ampere",
            ),
        ),
        ("NVIDIA/nvidia-container-toolkit#48", "pytorch: c10/cuda/CUDAFunctions.cpp"),
        Weight.WEAK,
    ),
    Cause(
        "HIP and CUDA",
        (),
        "two variables choose AMD GPUs in two ways",
        "Choose them by HIP_VISIBLE_DEVICES alone, before the agent starts",
        (
            Words(
                "Inconsistant values found. Please use either HIP_VISIBLE_DEVICES or CUDA",
                "ValueError: Inconsistant values found. Please use either HIP_VISIBLE_DEVICES or "
                "CUDA_VISIBLE_DEVICES",
            ),
        ),
        ("ray-project/ray#52701",),
    ),
    Cause(
        "ROCR",
        (),
        "ROCR_VISIBLE_DEVICES is set inside the job, which Ray or the framework refuses",
        "Unset it there, and choose AMD GPUs by HIP_VISIBLE_DEVICES",
        (
            Words(
                "ROCR_VISIBLE_DEVICES",
                "RuntimeError: Please use HIP_VISIBLE_DEVICES instead of ROCR_VISIBLE_DEVICES",
                only=r"(?:use|unset).{0,40}ROCR_VISIBLE_DEVICES"
                r"|ROCR_VISIBLE_DEVICES.{0,60}(?:use|unset|conflict)",
            ),
        ),
        ("ray-project/ray#52701",),
        is_live=False,
    ),
)

GPUS = (*FAULTS, *MEMORY, *BUILDS, *MISSING)
