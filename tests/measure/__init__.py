"""Benchmarks and experiments measure what they say, and say when they could not."""
