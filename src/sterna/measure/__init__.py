"""Benchmarks and the papers' experiments: one harness, one kind of report, a module for each measurement."""
