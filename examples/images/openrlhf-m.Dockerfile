# An image with OpenRLHF-M, which has no public one:
#   docker build --file examples/images/openrlhf-m.Dockerfile --tag you/openrlhf-m .
ARG BASE=nvcr.io/nvidia/pytorch:24.07-py3
FROM ${BASE}
ARG REVISION=2bf6337
# What NVIDIA's image has of these does not fit beside vLLM and flash-attn as OpenRLHF-M pins them.
RUN pip uninstall --yes xgboost transformer_engine flash_attn pynvml opencv \
    && git clone https://github.com/OpenRLHF/OpenRLHF-M /opt/OpenRLHF-M \
    && git -C /opt/OpenRLHF-M checkout --quiet "${REVISION}" \
    && pip install --no-cache-dir --editable '/opt/OpenRLHF-M[vllm]' \
    && pip install --no-cache-dir --no-build-isolation flash_attn \
    && pip install --no-cache-dir 'ray[default]>=2.40'
WORKDIR /opt/OpenRLHF-M
