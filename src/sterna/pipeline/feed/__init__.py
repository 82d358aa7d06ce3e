"""The client of a node's feed: one connection that asks, reads ranges of a journal, and hands in results.  No Spark."""
