"""Makes `format("sterna")` known to Spark: it looks for modules of this name, and for this attribute in them."""

from sterna.pipeline.data_source import SternaSource as DefaultSource

__all__ = ["DefaultSource"]
