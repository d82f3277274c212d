"""What the gateway counts, and how it is exported. Names and meanings stand in `table`."""

from router.metrics.recorder import Metrics
from router.metrics.table import METRICS, Metric

__all__ = ["METRICS", "Metric", "Metrics"]
