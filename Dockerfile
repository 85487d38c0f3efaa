# Serve the default model as an unprivileged user:
#   docker build -t ipex-lookahead .
#   docker run --rm -p 127.0.0.1:8080:8080 -v ipex-lookahead-costs:/opt/models/costs ipex-lookahead
# The volume stores measured step costs, so that a new container does not measure them again.
# Another model: -v /path/to/model.gguf:/model.gguf:ro ... serve --host 0.0.0.0 --model /model.gguf
# Families that run through PyTorch: docker build --build-arg WITH_TORCH=1 ...
#
# The base image is named by its tag, which moves with security updates. For a reproducible build, name its
# digest, which `docker inspect` shows after a pull:
#   docker pull python:3.12-slim-bookworm
#   docker build --build-arg PYTHON_IMAGE="$(docker inspect -f '{{index .RepoDigests 0}}' python:3.12-slim-bookworm)" .
ARG PYTHON_IMAGE=python:3.12-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/venv
# Layers that rarely change come first: torch's CPU build if requested (the version that scripts/setup.py pins), then the
# dependencies, then the sources.
ARG WITH_TORCH=
RUN if [ -n "$WITH_TORCH" ]; then \
      /opt/venv/bin/pip install --no-cache-dir torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu \
   && /opt/venv/bin/pip install --no-cache-dir 'transformers>=4.37,<5.25'; fi
WORKDIR /src
COPY pyproject.toml .
RUN python -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
print(*p['dependencies'], *p['optional-dependencies']['serve'], sep='\n')" > /requirements.txt \
 && /opt/venv/bin/pip install --no-cache-dir -r /requirements.txt
COPY . .
RUN /opt/venv/bin/pip install --no-cache-dir '.[serve]' \
 && IPEX_LOOKAHEAD_CACHE=/opt/models /opt/venv/bin/ipex-lookahead info default > /dev/null \
 && mkdir -p /opt/models/costs

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="ipex-lookahead" \
      org.opencontainers.image.description="Run 4-bit LLMs fast on an ordinary CPU, with exact lookahead decoding" \
      org.opencontainers.image.version="0.3.0.dev0" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.source="https://github.com/ipex-lookahead/ipex-lookahead"
RUN useradd --create-home --uid 10001 lookahead
COPY --from=build /opt/venv /opt/venv
COPY --from=build --chown=lookahead /opt/models /opt/models
USER lookahead
ENV PATH=/opt/venv/bin:$PATH IPEX_LOOKAHEAD_CACHE=/opt/models
VOLUME /opt/models/costs
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --start-period=60s CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8080/health', timeout=5)"]
ENTRYPOINT ["ipex-lookahead"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8080"]
