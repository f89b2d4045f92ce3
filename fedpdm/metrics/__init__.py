"""What a classifier is worth on rows that it was not trained on, each figure with its interval."""

from fedpdm.metrics.counts import Counts, count, metrics_of_counts
from fedpdm.metrics.evaluate import BALANCED, choose_threshold, evaluate, predicted
from fedpdm.metrics.intervals import Estimate

__all__ = ["BALANCED", "Counts", "Estimate", "choose_threshold", "count", "evaluate", "metrics_of_counts", "predicted"]
