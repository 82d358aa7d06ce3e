"""From a node's journal through Spark."""
