"""The files of an archive: the list of those that count, compaction, and the names of directories.  No Spark."""
