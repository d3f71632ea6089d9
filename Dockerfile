# The sidecar: reads the trainer's rings, judges, exports. No torch, no compiler, not root.
#
#   docker build -t grpo-sentinel .
#
# It must run with the uid of the trainer (rings are private to it) and see the same ring directory: deploy/compose.yaml.

FROM python:3.12-slim AS build
WORKDIR /src
RUN python -m venv /opt/grpo-sentinel
COPY pyproject.toml README.md LICENSE grpo_sentinel.pth ./
COPY grpo_sentinel ./grpo_sentinel
RUN /opt/grpo-sentinel/bin/pip install --no-cache-dir ".[stacks]" \
    && rm -rf /opt/grpo-sentinel/lib/python3.12/site-packages/pip*

FROM python:3.12-slim
ENV PATH=/opt/grpo-sentinel/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    GRPO_SENTINEL_DIR=/run/grpo-sentinel \
    XDG_STATE_HOME=/var/lib
# world-writable and sticky, like /tmp: the uid is the trainer's, whatever it is
RUN install -d -m 1777 /run/grpo-sentinel /var/lib/grpo-sentinel
COPY --from=build /opt/grpo-sentinel /opt/grpo-sentinel
USER 10001:10001
EXPOSE 9477
HEALTHCHECK --interval=15s --timeout=5s --start-period=10s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9477/livez', timeout=4)"]
ENTRYPOINT ["grpo-sentinel"]
CMD ["run"]
