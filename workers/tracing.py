"""Sends the spans of worker and beat to an OpenTelemetry collector, when the usual variables name one."""

import os

from memory_tasks.loading import needs_extra

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def install() -> None:
    """Set OpenTelemetry up, if one of `OTEL_EXPORTER_OTLP_ENDPOINT` and `..._TRACES_ENDPOINT` is set.

    Raises:
        SettingsError: The extra `tracing` is not installed.
    """
    named = [name for name in ENDPOINTS if os.environ.get(name)]
    if not named:
        return
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise needs_extra("tracing", named[0]) from error
    provider = TracerProvider(resource=Resource.create({"service.name": "memory-tasks"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
