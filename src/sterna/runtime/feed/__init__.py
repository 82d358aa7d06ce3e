"""The feed: a node's journal as a table for readers such as Spark, over TCP or TLS."""
