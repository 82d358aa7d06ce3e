"""Computing subscriptions on Spark: which expressions there are, what tasks compute, how the parts are merged."""
