"""Spark on real nodes: the source, the sink and the jobs."""
