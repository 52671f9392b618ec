"""Traces of OpenTelemetry: only sampled spans are created, at little cost.

With tracing off, only `current()` of this package runs, and returns None; nothing of OpenTelemetry is imported. In
reading order:

trace_context  `TraceContext`: the part of a span sent between processes, as W3C's `traceparent`
conventions    every name of spans and attributes, rftd's and OpenTelemetry's
tracer         `Tracer` and its spans: sampling, and ids; `current()` is the open span
exporter       `SpanExporter`: a bounded queue, and the emptying thread
otel_context   the open span for third parties' instrumented programs
otlp           spans as OTLP over HTTP, by OpenTelemetry's SDK; the only module importing the SDK
trace_options  `TraceOptions`: receiver and share of spans; `tracing()` is a tracer for a block
"""
