"""Rows of brokers beside each other: what a hop costs."""
