"""Spans of messages, sent to an OpenTelemetry collector."""
