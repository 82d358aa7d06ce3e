"""A network's journals as one table for Spark, and the jobs on it.

`feed` is the client of a node's feed.  `data_source` is `format("sterna")`: `source` reads, `sink` writes, `options`
are what a user may set.  `archive`, `audit` and `expressions` are the parts that the `jobs` put together.
"""
