"""Files of a node: segments of the journal, the database of sessions, and the disk space held back for both."""
