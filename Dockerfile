# refold as an image that serves a model: docs/installing.md#docker. The first stage builds Debian packages, the second
# one installs them.
FROM debian:bookworm-slim AS build
WORKDIR /refold
# Without the torch engine, which would need libtorch: an image serves, compresses and measures.
ENV REFOLD_TRAIN=OFF
# A layer of its own: it changes less often than the sources, and llama.cpp takes minutes.
COPY scripts/setup scripts/
COPY cmake cmake
RUN scripts/setup --portable --package
COPY . .
RUN scripts/build release --portable --target refold_cli && scripts/package-deb

FROM debian:bookworm-slim
COPY --from=build /refold/build/release/packages/*.deb /tmp/packages/
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates curl libopenblas0-openmp /tmp/packages/*.deb \
    && rm -rf /tmp/packages /var/lib/apt/lists/* \
    && useradd --uid 10001 --user-group --no-create-home --home-dir /models refold \
    && install --directory --owner refold --group refold /models
# Models: the cache of `refold pull`, the hub's cache, and files of one's own.
ENV REFOLD_CACHE=/models/cache HF_HOME=/models/huggingface
VOLUME /models
WORKDIR /models
USER refold
EXPOSE 8080
HEALTHCHECK --interval=30s --timeout=5s --start-period=120s CMD curl --fail --silent --show-error http://127.0.0.1:8080/health
ENTRYPOINT ["refold"]
CMD ["serve", "smollm2-135m-instruct", "--host", "0.0.0.0", "--port", "8080"]
