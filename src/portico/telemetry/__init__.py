"""What operators see of a process: a line for each request, and spans and metrics of OpenTelemetry."""
