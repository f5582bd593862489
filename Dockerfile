# Small images with the trainer. For CPUs:
#   docker build -t trainer .
#   docker run --rm -v trainer-runs:/home/trainer/runs trainer train --config configs/quickstart.toml
# With configuration, data and run.dir in this folder:
#   docker run --rm --user "$(id -u):$(id -g)" -v "$PWD:/work" -w /work trainer --config run.toml
# On two ranks:
#   docker run --rm --entrypoint mpirun trainer -np 2 --bind-to none trainer --config configs/quickstart.toml
# For NVIDIA GPUs (driver 580 or newer):
#   docker build -t trainer-cuda --target cuda .
#   docker run --rm --gpus all -v trainer-runs:/home/trainer/runs trainer-cuda train --config configs/quickstart.toml
# For configs/kubernetes.yaml, with an SSH server by which mpirun starts ranks:
#   docker build -t trainer-kubernetes --target kubernetes .
FROM debian:bookworm-slim AS packages
WORKDIR /src
COPY scripts/install_packages.sh scripts/
RUN scripts/install_packages.sh && rm -rf /var/lib/apt/lists/*

FROM packages AS build
COPY . .
RUN cmake --preset release && cmake --build --preset release && strip build/trainer

FROM packages AS cuda-build
COPY scripts/cuda_toolkit.sh scripts/
RUN apt-get update && apt-get install -y --no-install-recommends python3-pip && rm -rf /var/lib/apt/lists/* \
 && scripts/cuda_toolkit.sh /usr/local/cuda
COPY . .
RUN cmake --preset release -DTRAINER_CUDA=ON -DTRAINER_NCCL=ON -DTRAINER_CUDNN=ON \
 && cmake --build --preset release && strip build/trainer

FROM debian:bookworm-slim AS runtime
RUN apt-get update \
 && apt-get install -y --no-install-recommends libfmt9 libopenmpi3 libsentencepiece0 openmpi-bin libstdc++6 \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --create-home --uid 1000 trainer \
 && install -d -o trainer -g trainer /home/trainer/runs
COPY --chown=trainer configs /home/trainer/configs
COPY --chown=trainer data /home/trainer/data
COPY --chown=trainer docs /home/trainer/docs
COPY --chown=trainer README.md CHANGELOG.md CONTRIBUTING.md LICENSE /home/trainer/
COPY --chown=trainer tests/bench/*.md tests/bench/*.svg /home/trainer/tests/bench/
COPY --chown=trainer scripts/slurm_job.sh /home/trainer/scripts/
WORKDIR /home/trainer
# What the image was built from; docs/install.md has the command that fills them in.
ARG VERSION=unknown REVISION=unknown CREATED=unknown SOURCE=unknown
LABEL org.opencontainers.image.title="trainer" \
      org.opencontainers.image.description="Pretrains GPT-style language models with tensor parallelism" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.created="$CREATED" \
      org.opencontainers.image.source="$SOURCE" \
      org.opencontainers.image.licenses="Apache-2.0"
# Without these Open MPI's mpirun refuses to start where the container's user is root (docker run --user 0).
ENV OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
ENTRYPOINT ["trainer"]

FROM runtime AS cuda
COPY --from=cuda-build /usr/local/cuda/lib/libcublasLt.so.13 /usr/local/cuda/lib/libnccl.so.2 \
  /usr/local/cuda/lib/libcudnn*.so.9 /usr/local/cuda/lib/libnvrtc.so.13 /usr/local/cuda/lib/libnvrtc-builtins.so.13.0 \
  /usr/local/lib/
RUN ldconfig
# What the container runtime gives to images that are not NVIDIA's own.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=cuda-build /src/build/trainer /usr/local/bin/trainer
USER trainer

# The MPI operator puts keys into ~/.ssh of every pod.
FROM runtime AS kubernetes
RUN apt-get update \
 && apt-get install -y --no-install-recommends openssh-client openssh-server \
 && rm -rf /var/lib/apt/lists/* \
 && install -d /run/sshd \
 && printf 'Host *\n  Port 2222\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n' \
      > /etc/ssh/ssh_config.d/ranks.conf \
 && printf 'Port 2222\nPidFile /home/trainer/sshd.pid\nHostKey /home/trainer/.ssh/id_rsa\nStrictModes no\n' \
      > /home/trainer/sshd_config
COPY --from=build /src/build/trainer /usr/local/bin/trainer
USER trainer

FROM runtime AS cpu
COPY --from=build /src/build/trainer /usr/local/bin/trainer
USER trainer
