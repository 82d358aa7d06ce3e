"""Makes `format("sterna_archive")` known to Spark, which looks for modules of this name and for this attribute."""

from sterna.pipeline.archive.data_source import ArchiveSource as DefaultSource

__all__ = ["DefaultSource"]
