"""Writing to a network with Spark: rows are checked, numbered, and published once."""
