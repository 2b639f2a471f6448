# The image of a host: `make image` builds and tries it. Two stages on one base, so that both have the same Java: an archive of
# classes fits no other.
FROM debian:trixie-slim AS base
# Java's package links a page of the manual, for which the slim image has no place.
RUN mkdir -p /usr/share/man/man1 \
 && apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends openjdk-21-jre-headless python3 \
 && rm -rf /var/lib/apt/lists/* /var/cache/* /var/log/* \
 && useradd --uid 10001 --user-group --no-log-init --home-dir /var/lib/leasehold --create-home --shell /usr/sbin/nologin leasehold

FROM base AS build
RUN apt-get update && apt-get install --yes --no-install-recommends python3-venv
WORKDIR /build
# Whom to trust, where a network signs TLS anew: image/build says it.
ARG SSL_CERT_FILE
COPY pyproject.toml uv.lock README.md LICENSE ./
RUN python3 -m venv /uv && /uv/bin/pip install --quiet "$(grep -oE 'uv==[0-9.]+' pyproject.toml)"
ENV UV_PROJECT_ENVIRONMENT=/opt/leasehold UV_PYTHON=/usr/bin/python3 UV_PYTHON_DOWNLOADS=never UV_LINK_MODE=copy
RUN /uv/bin/uv sync --locked --no-dev --extra connect --extra otel --no-install-project
COPY leases leases
COPY pipeline pipeline
COPY service service
RUN /uv/bin/uv sync --locked --no-dev --extra connect --extra otel --no-editable
COPY image image
# Slimmed, compiled, and Spark started directly.
RUN site=/opt/leasehold/lib/python3.13/site-packages \
 && python3 image/slim.py $site \
 && install --mode 755 image/spark_submit.py $site/pyspark/bin/spark-submit \
 && $site/pyspark/bin/spark-submit learn \
 && /opt/leasehold/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/leasehold/lib
# With an archive of the classes that Spark loads for a small job. (A build has a name that resolves to no address.)
COPY tests/java_archive.py image/
RUN SPARK_LOCAL_IP=127.0.0.1 /opt/leasehold/bin/python image/java_archive.py /opt/leasehold/spark.jsa \
 && test -s /opt/leasehold/spark.jsa

FROM base
LABEL org.opencontainers.image.title="Leasehold" \
      org.opencontainers.image.description="A lease-based change-feed processor" \
      org.opencontainers.image.licenses="MIT"
COPY --from=build /opt/leasehold /opt/leasehold
ENV PATH=/opt/leasehold/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/var/lib/leasehold \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    SPARK_SUBMIT_OPTS="-XX:SharedArchiveFile=/opt/leasehold/spark.jsa -Xshare:auto -Xlog:disable -Xlog:all=off"
WORKDIR /var/lib/leasehold
USER 10001:10001
EXPOSE 8080
STOPSIGNAL SIGTERM
# Kubernetes has probes of its own. The port is that of `api.port` by default.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
  CMD ["/opt/leasehold/bin/python", "-I", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8080/health/live', timeout=4)"]
ENTRYPOINT ["/opt/leasehold/bin/leasehold"]
CMD ["run", "/etc/leasehold/leasehold.yaml"]
