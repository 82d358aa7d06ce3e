"""The configuration: its tables, how a file and the environment become one, and every reason to refuse it."""
