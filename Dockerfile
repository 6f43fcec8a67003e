# The agent as a layer over a framework's image, whose torch, CUDA and Ray stay as they are:
#   docker build --build-arg BASE=verlai/verl:… --tag my-verl .
# The default is a tag; `./scripts/pin --base` writes the digest that its registry has today.
ARG BASE=python:3.11-slim

FROM ${BASE} AS build
# The Python that has Ray, or shall get it; by default that of the `ray` on PATH, else python3.
ARG PYTHON=""
USER root
COPY . /src
RUN "${PYTHON:-$(command -v python3 || command -v python)}" \
    /src/scripts/tools/layer/install.py agent /opt/pod-agent "${PYTHON}"

FROM ${BASE}
ARG BASE
# Installed only where the base has none.
ARG RAY=2.60.0
ARG VERSION=0.1.0
ARG REVISION=""
LABEL org.opencontainers.image.title="pod-agent" \
      org.opencontainers.image.description="One entrypoint that turns N rented pods into one running RL training job." \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="${BASE}"
COPY --from=build /opt/pod-agent /opt/pod-agent
COPY --from=build /opt/pod-agent/bin/pod-agent /usr/local/bin/pod-agent
RUN /opt/pod-agent/bin/python -I /opt/pod-agent/layer/install.py ray /opt/pod-agent "${RAY}"
HEALTHCHECK --interval=120s --timeout=15s --start-period=60s --retries=3 \
    CMD ["pod-agent", "status", "--live"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["pod-agent"]
CMD []
