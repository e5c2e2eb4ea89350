# The service in an empty image: one static binary, the CAs for TLS to Redis, and a software bill of materials
# (/usr/share/tidegate/sbom.cdx.json).
#
#   docker build -t tidegate .      (with BuildKit, which is the default since Docker 23)
#
# `make release` builds the same content without a container engine, as an OCI layout, and tries it.

FROM rust:1.88-bookworm AS build
RUN apt-get -qq update && apt-get -qq install --no-install-recommends --yes python3-venv ca-certificates
WORKDIR /tidegate
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/tidegate/target \
    .ci/release/build /out

FROM scratch
COPY --from=build /out/ /
# A numeric user needs no /etc/passwd, and Kubernetes can verify that it is not root.
USER 65532:65532
# gRPC and HTTP (probes, metrics, /json). The debug port listens on loopback.
EXPOSE 8081 8080
# Started as /bin/ratelimit, or without arguments while RUNTIME_ROOT is set, it serves like envoyproxy/ratelimit.
ENTRYPOINT ["/bin/tidegate"]
