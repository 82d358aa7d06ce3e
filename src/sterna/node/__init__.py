"""One node: the cores composed.  The only place where they meet."""
