# docker build -t nnr . && docker run --rm -v "$PWD:/data" -u "$(id -u):$(id -g)" nnr encode model.onnx
FROM python:3.13-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc=4:* libc6-dev=2.* && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
RUN python -m venv /opt/nnr && /opt/nnr/bin/pip install --no-cache-dir .

FROM python:3.13-slim
COPY --from=build /opt/nnr /opt/nnr
RUN useradd --no-create-home --uid 10001 nnr
USER 10001
WORKDIR /data
ENTRYPOINT ["/opt/nnr/bin/nnr"]
