"""Several processes as one node: linked nodes behind the same ports, so that every core is used."""
