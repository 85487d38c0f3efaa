# A server of the embedded model as a user without root:
#   docker build -t ipex-lookahead . && docker run --rm -p 127.0.0.1:8080:8080 ipex-lookahead
# Another model: -v /path/to/model.gguf:/model.gguf:ro ... serve --host 0.0.0.0 --model /model.gguf
FROM python:3.12-slim-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++ cmake && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN python -m venv /opt/venv \
 && /opt/venv/bin/pip install --no-cache-dir torch --index-url https://download.pytorch.org/whl/cpu \
 && /opt/venv/bin/pip install --no-cache-dir '.[serve]' \
 && IPEX_LOOKAHEAD_CACHE=/opt/models /opt/venv/bin/ipex-lookahead info default > /dev/null

FROM python:3.12-slim-bookworm
RUN useradd --create-home --uid 10001 lookahead
COPY --from=build /opt/venv /opt/venv
COPY --from=build --chown=lookahead /opt/models /opt/models
USER lookahead
ENV PATH=/opt/venv/bin:$PATH IPEX_LOOKAHEAD_CACHE=/opt/models
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --start-period=60s CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8080/health', timeout=5)"]
ENTRYPOINT ["ipex-lookahead"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8080"]
