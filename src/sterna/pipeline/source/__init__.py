"""Reading a network with Spark: nodes, offsets, ranges, and the batch and stream readers of `format("sterna")`."""
