"""A gateway as a process: its settings, its server, and the pages of its admin port."""
