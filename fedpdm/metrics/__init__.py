"""The quality of a model on rows that it was not trained on, each figure with its interval."""

from fedpdm.metrics.counts import Counts, count, metrics_of_counts
from fedpdm.metrics.evaluate import BALANCED, choose_threshold, evaluate, figures
from fedpdm.metrics.intervals import Estimate
from fedpdm.metrics.predictions import Predictions, predicted

__all__ = ["BALANCED", "Counts", "Estimate", "Predictions", "choose_threshold", "count", "evaluate", "figures"]
__all__ += ["metrics_of_counts", "predicted"]
