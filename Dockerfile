# The gateway (and the mock fleet) as an image: pinned dependencies (those of the extra too), no build tools, no root.
# docker build -t kvgate . && docker run -p 8000:8000 kvgate serve --worker-urls http://host:8000

FROM python:3.11-slim AS build
WORKDIR /src
RUN python -m venv /opt/kvgate
COPY constraints.txt .
RUN /opt/kvgate/bin/python -m pip install --no-cache-dir --require-hashes -r constraints.txt
COPY pyproject.toml README.md LICENSE ./
COPY indexer indexer
COPY policies policies
COPY router router
COPY loadgen loadgen
# setuptools is pinned in constraints.txt for this one step; neither it nor pip is needed afterwards.
RUN /opt/kvgate/bin/python -m pip install --no-cache-dir --no-deps --no-build-isolation . \
 && /opt/kvgate/bin/python -m compileall -q /opt/kvgate/lib \
 && /opt/kvgate/bin/python -m pip uninstall -q -y setuptools pip

FROM python:3.11-slim
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin kvgate
COPY --from=build /opt/kvgate /opt/kvgate
COPY deploy/entrypoint.sh /usr/local/bin/kvgate-entrypoint
COPY deploy/healthcheck.py /usr/local/bin/kvgate-healthcheck
ENV PATH=/opt/kvgate/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001
# 8000 serves clients. 9190, the admin port, leaves the container only with KVGATE_ADMIN_API_KEY set.
EXPOSE 8000 9190
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s CMD ["python", "/usr/local/bin/kvgate-healthcheck"]
ENTRYPOINT ["kvgate-entrypoint"]
CMD ["serve"]
