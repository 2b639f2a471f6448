# The image of a host: `make image` builds and tries it. All stages have one base, so that they have the same Python and libraries.
# The last stage is the image with a Spark of its own. `--target thin` is the one without: it needs `spark.remote`.
# A release names the base by its digest: debian:trixie-slim@sha256:...
ARG BASE=debian:trixie-slim
FROM ${BASE} AS base
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends ca-certificates python3 \
 && rm -rf /var/lib/apt/lists/* /var/cache/* /var/log/* \
 && useradd --uid 10001 --user-group --no-log-init --home-dir /var/lib/leasehold --create-home --shell /usr/sbin/nologin leasehold

# What both images have: our packages and theirs, as they are installed.
FROM base AS environment
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends binutils python3-venv
WORKDIR /build
# Whom to trust, where a network signs TLS anew: image/build says it.
ARG SSL_CERT_FILE
COPY pyproject.toml uv.lock ./
COPY emulators/pyproject.toml emulators/
RUN python3 -m venv /uv && /uv/bin/pip install --quiet "$(grep -oE 'uv==[0-9.]+' pyproject.toml)"
ENV UV_PROJECT_ENVIRONMENT=/opt/leasehold UV_PYTHON=/usr/bin/python3 UV_PYTHON_DOWNLOADS=never UV_LINK_MODE=copy
RUN /uv/bin/uv sync --locked --no-dev --extra binary --extra connect --extra otel --extra pandas --no-install-workspace
COPY README.md LICENSE ./
COPY leasehold leasehold
COPY leases leases
COPY pipeline pipeline
COPY service service
RUN /uv/bin/uv sync --locked --no-dev --extra binary --extra connect --extra otel --extra pandas --no-editable
COPY image image

# For development: `leasehold emulate` beside all that (docs/local.md). It is not slimmed.
FROM environment AS emulators
ARG SSL_CERT_FILE
COPY emulators emulators
RUN /uv/bin/uv sync --locked --no-dev --inexact --extra emulators --no-editable
ENV PATH=/opt/leasehold/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/var/lib/leasehold \
    PYTHONUNBUFFERED=1
WORKDIR /var/lib/leasehold
USER 10001:10001
ENTRYPOINT ["/opt/leasehold/bin/leasehold"]

# Texts of licences that the wheel of psycopg-binary and Java's folder lack for their libraries: Debian's packages of these have them.
FROM base AS texts
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends libnss-wrapper libpq5

# Slimmed, without Spark's jars and scripts, and compiled. (Symbols are for debuggers.)
FROM environment AS environment-thin
RUN site=/opt/leasehold/lib/python3.13/site-packages \
 && python3 image/slim.py $site unused.txt unused-thin.txt && rm -r /opt/leasehold/share/py4j \
 && find $site -name '*.so*' -type f -exec strip --strip-unneeded {} + \
 && /opt/leasehold/bin/python -B -X no_debug_ranges image/compiled.py $site bare \
 && /opt/leasehold/bin/python -B image/compiled.py
COPY --from=base /var/lib/dpkg/status /build/base
COPY --from=texts /usr/share/doc /build/texts
RUN python3 image/third_party.py /opt/leasehold/lib/python3.13/site-packages base /usr/share/doc texts /opt/leasehold/licenses - > /opt/leasehold/THIRD-PARTY.txt

# And what is below both, without what only installs packages.
FROM base AS base-thin
COPY image/slim.py image/unused-thin-root.txt /run/image/
RUN python3 /run/image/slim.py / unused-thin-root.txt && rm -r /run/image

# Java of the modules that Spark and Hadoop ask for, with the certificates that Debian's Java trusts, and an archive of its own classes.
# The wrapper gives a name to a user that /etc/passwd lacks: image/spark_submit.py. Java's packages link pages of the manual, for which the slim image has no place.
FROM base AS java
RUN mkdir -p /usr/share/man/man1 \
 && apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends binutils libnss-wrapper openjdk-21-jdk-headless
COPY image/modules.txt /build/image/
RUN jlink --add-modules "$(grep -v '^#' /build/image/modules.txt | paste -sd,)" \
      --compress zip-6 --strip-java-debug-attributes --no-header-files --no-man-pages --output /opt/java \
 && cp /usr/lib/*/libnss_wrapper.so /opt/java/lib \
 && find /opt/java -name '*.so' -exec strip --strip-unneeded {} + \
 && rm -f /opt/java/lib/security/cacerts && cp --dereference /etc/ssl/certs/java/cacerts /opt/java/lib/security/cacerts \
 && /opt/java/bin/java -XX:+UseG1GC -Xshare:dump -Xlog:disable

# Slimmed, compiled, and Spark started directly.
FROM environment AS environment-full
COPY --from=java /opt/java /opt/java
ENV JAVA_HOME=/opt/java
RUN site=/opt/leasehold/lib/python3.13/site-packages \
 && python3 image/slim.py $site unused.txt \
 && find $site -name '*.so*' -type f -exec strip --strip-unneeded {} + \
 && install --mode 755 image/spark_submit.py $site/pyspark/bin/spark-submit \
 && $site/pyspark/bin/spark-submit learn \
 && /opt/leasehold/bin/python -B image/compiled.py $site
# With an archive of the classes that Spark loads for a small job. (A build has a name that resolves to no address.) Java refuses it if
# a jar has another time than now, and a release gives what is newer than its commit the commit's time. So all jars are from 1980.
COPY tests/java_archive.py image/
RUN find /opt/leasehold/lib/python3.13/site-packages/pyspark/jars -name '*.jar' -exec touch --date=1980-01-01 {} + \
 && SPARK_LOCAL_IP=127.0.0.1 /opt/leasehold/bin/python image/java_archive.py /opt/leasehold/spark.jsa \
 && test -s /opt/leasehold/spark.jsa
COPY --from=base /var/lib/dpkg/status /build/base
COPY --from=texts /usr/share/doc /build/texts
RUN python3 image/third_party.py /opt/leasehold/lib/python3.13/site-packages base /usr/share/doc texts /opt/leasehold/licenses /opt/java > /opt/leasehold/THIRD-PARTY.txt

# In one layer, since what a later layer takes out of an earlier one still has to be pulled. Both images are run in the same way.
FROM scratch AS thin
COPY --from=base-thin / /
COPY --from=environment-thin /opt/leasehold /opt/leasehold
ARG BASE
ARG VERSION=
ARG REVISION=
LABEL org.opencontainers.image.title="Leasehold" \
      org.opencontainers.image.description="A lease-based change-feed processor" \
      org.opencontainers.image.licenses="MIT" \
      org.opencontainers.image.source="https://github.com/leasehold/leasehold" \
      org.opencontainers.image.base.name="${BASE}" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# Threads share two of glibc's pools of memory. By default there are eight for each core. Arrow takes its memory from glibc, too. With
# a fixed threshold, glibc returns large buffers at once, and free memory soon: 10 MB less in a pod that has worked.
ENV PATH=/opt/leasehold/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/var/lib/leasehold \
    MALLOC_ARENA_MAX=2 \
    MALLOC_TRIM_THRESHOLD_=131072 \
    ARROW_DEFAULT_MEMORY_POOL=system \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYDANTIC_DISABLE_PLUGINS=__all__
WORKDIR /var/lib/leasehold
USER 10001:10001
EXPOSE 8080
STOPSIGNAL SIGTERM
# Kubernetes has probes of its own. The port is that of `api.port` by default.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
  CMD ["/opt/leasehold/bin/python", "-I", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8080/health/live', timeout=4)"]
ENTRYPOINT ["/opt/leasehold/bin/leasehold"]
CMD ["run", "/etc/leasehold/leasehold.yaml"]

FROM base
COPY --from=environment-full /opt/java /opt/java
COPY --from=environment-full /opt/leasehold /opt/leasehold
ARG BASE
ARG VERSION=
ARG REVISION=
LABEL org.opencontainers.image.title="Leasehold" \
      org.opencontainers.image.description="A lease-based change-feed processor" \
      org.opencontainers.image.licenses="MIT" \
      org.opencontainers.image.source="https://github.com/leasehold/leasehold" \
      org.opencontainers.image.base.name="${BASE}" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
ENV JAVA_HOME=/opt/java \
    PATH=/opt/leasehold/bin:/opt/java/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/var/lib/leasehold \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYDANTIC_DISABLE_PLUGINS=__all__ \
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
