# The worker image: `docker build .`, or with extras: `docker build --build-arg EXTRAS=openai .`
ARG PYTHON_IMAGE=python:3.11-slim-bookworm
FROM ${PYTHON_IMAGE} AS build
ARG EXTRAS=openai,web
WORKDIR /src
COPY requirements.lock ./
COPY pyproject.toml README.md LICENSE beat_schedule.py ./
COPY memory_tasks memory_tasks
COPY workers workers
RUN python -m venv /venv \
 && /venv/bin/pip install --no-cache-dir --disable-pip-version-check hatchling \
 && sed -n '/^[^ #]/s/ *\\$//p' requirements.lock > constraints.txt \
 && /venv/bin/pip install --no-cache-dir --disable-pip-version-check --constraint constraints.txt ".[${EXTRAS}]" \
 && /venv/bin/pip uninstall --yes hatchling

FROM ${PYTHON_IMAGE}
RUN useradd --system --create-home --uid 10001 memory && mkdir /data && chown memory /data
COPY --from=build /venv /venv
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 MEMORY_TASKS_LONG_TERM_URL=sqlite:////data/memory.db
USER memory
WORKDIR /data
VOLUME /data
HEALTHCHECK --interval=20s --timeout=15s --start-period=30s CMD ["memory-tasks", "health"]
CMD ["celery", "-A", "workers.app", "worker", "-Q", "reply,persist,promote", "-P", "threads", "-c", "50", "--loglevel", "INFO"]
