# One image for agent, aggregator and command line. `docker build -t federator:0.2.0 .`
FROM python:3.13.9-slim-bookworm AS build
WORKDIR /src
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
RUN python -m venv --without-pip /opt/federator
COPY requirements.lock requirements-dev.lock ./
# Wheels alone: nothing is compiled, here or later.
RUN python -m pip --python /opt/federator install --require-hashes --only-binary=:all: -r requirements.lock \
 && python -m pip install "$(grep -o '^hatchling==[^ ]*' requirements-dev.lock)"
COPY pyproject.toml README.md LICENSE ./
COPY federator federator
RUN python -m pip wheel --no-deps --no-build-isolation --wheel-dir /dist . \
 && python -m pip --python /opt/federator install --no-deps --no-index /dist/*.whl \
 && python -m compileall -q /opt/federator

FROM python:3.13.9-slim-bookworm
# The base's own installer is of no use to a process that may write nothing.
RUN python -m pip uninstall --yes --quiet --root-user-action=ignore pip
COPY --from=build /opt/federator /opt/federator
ENV PATH=/opt/federator/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# A number, so that Kubernetes can tell that it is not root.
USER 65532:65532
WORKDIR /tmp
EXPOSE 9090 9091 9443
ENTRYPOINT ["federator"]
