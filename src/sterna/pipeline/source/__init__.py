"""Reads a network with Spark: the nodes, their gaps, the ranges of tasks, and the readers of `format("sterna")`."""
