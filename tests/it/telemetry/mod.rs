//! OpenTelemetry metrics and traces as a collector receives them: the real binary, a real Redis,
//! and an OTLP receiver in this process.

mod otlp_http;
mod otlp_http_receiver;
mod otlp_metrics;
mod otlp_receiver;
mod otlp_traces;
mod traced_call;
