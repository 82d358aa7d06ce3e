"""What flows through the network as a table for Spark: the feed's client, the data source, the sink, the jobs."""
