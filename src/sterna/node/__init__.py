"""One node: the cores composed.  Nobody else puts broker, journal, links and moves together."""
