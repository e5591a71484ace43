# One image for coordinator and containers:
#   docker run --network host IMAGE coordinator
#   docker run --no-healthcheck IMAGE container JOBFILE
FROM python:3.11-slim-bookworm

ENV PATH=/opt/sluice/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    SLUICE_HOME=/var/lib/sluice \
    SLUICE_JARS_DIR=/opt/sluice/jars

WORKDIR /usr/src/sluice
COPY scripts/java scripts/install-image scripts/
RUN scripts/install-image /opt/sluice system && rm -rf /var/lib/apt/lists/*

# Extras of pyproject.toml, for example "demo" for the data of the flights example.
ARG EXTRAS=""
# Another PySpark than that of constraints.txt, for example 4.3.0.
ARG SPARK_VERSION=""
COPY pyproject.toml constraints.txt ./
RUN PIP_NO_CACHE_DIR=1 scripts/install-image /opt/sluice dependencies

COPY . .
RUN PIP_NO_CACHE_DIR=1 scripts/install-image /opt/sluice sluice jars classes

# A fixed user id: a volume's files belong to the same user in every release, and Kubernetes can verify that it is not root.
RUN groupadd --gid 10001 sluice \
    && useradd --uid 10001 --gid 10001 --home-dir /var/lib/sluice --no-create-home --shell /usr/sbin/nologin sluice \
    && install -d -o 10001 -g 10001 /var/lib/sluice /var/lib/sluice/log /var/lib/sluice/identity /var/lib/sluice/scrape
USER 10001:10001
WORKDIR /var/lib/sluice
VOLUME /var/lib/sluice
EXPOSE 8180

# For the coordinator. A container has no port, and ends by itself: use --no-healthcheck.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-P", "-c", "import http.client, os, ssl, sys; k = dict(context=ssl._create_unverified_context()) if os.environ.get('SLUICE_TLS_CERTIFICATE') else {}; c = (http.client.HTTPSConnection if k else http.client.HTTPConnection)('127.0.0.1', int(os.environ.get('SLUICE_PORT', '8180')), timeout=4, **k); c.request('GET', '/livez'); sys.exit(c.getresponse().status != 200)"]

# tini reaps orphans, and sends SIGTERM to its child alone, so a container's agent can stop between batches.
ENTRYPOINT ["tini", "--", "sluice"]
CMD ["--help"]
