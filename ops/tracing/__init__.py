"""Traces of OpenTelemetry: spans are cheap to make, and only those that are sampled are made.

With tracing off nothing of this package runs but `current()`, which is None, and nothing of OpenTelemetry is imported.

In reading order:

trace_context  `TraceContext`: the place in a trace that travels, as W3C's `traceparent`
conventions    every name of spans and attributes, ours and those of OpenTelemetry
tracer         `Tracer` and its spans: which are made, and their ids; `current()` is the one that is open
exporter       `SpanExporter`: a bounded queue, and the thread that empties it
otel_context   the same span for third parties' programs that are instrumented themselves
otlp           spans as OTLP over HTTP, by OpenTelemetry's SDK; nothing else imports it
trace_options  `TraceOptions`: where spans go, and how many; `tracing()` is a tracer for a block
"""
