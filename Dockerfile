# A small image with the CPU build of the trainer:
#   docker build -t trainer .
#   docker run --rm -v trainer-runs:/home/trainer/runs trainer train --config configs/quickstart.toml
# On two ranks:
#   docker run --rm --entrypoint mpirun trainer -np 2 --bind-to none trainer --config configs/quickstart.toml
FROM debian:bookworm-slim AS build
WORKDIR /src
COPY scripts/install_packages.sh scripts/
RUN scripts/install_packages.sh && rm -rf /var/lib/apt/lists/*
COPY . .
RUN cmake --preset release && cmake --build --preset release && strip build/trainer

FROM debian:bookworm-slim AS cpu
RUN apt-get update \
 && apt-get install -y --no-install-recommends libdnnl2 libfmt9 libopenmpi3 libsentencepiece0 openmpi-bin libstdc++6 \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --create-home --uid 1000 trainer \
 && install -d -o trainer -g trainer /home/trainer/runs
COPY --from=build /src/build/trainer /usr/local/bin/trainer
COPY --chown=trainer configs /home/trainer/configs
COPY --chown=trainer data /home/trainer/data
USER trainer
WORKDIR /home/trainer
ENTRYPOINT ["trainer"]
