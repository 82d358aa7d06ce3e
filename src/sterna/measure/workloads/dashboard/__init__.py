"""The cost of a dashboard to its node, and how fast its pages have their data in a large network."""
