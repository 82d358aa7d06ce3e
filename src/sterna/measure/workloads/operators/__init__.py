"""Subscriptions that compute: in a node, between nodes, on Spark."""
