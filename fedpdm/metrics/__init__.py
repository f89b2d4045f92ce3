"""The quality of a model on rows that it was not trained on, each figure with its interval."""

from fedpdm.metrics.counts import Counts, count, counts_of, metrics_of_counts, vector_of
from fedpdm.metrics.evaluate import BALANCED, choose_threshold, evaluate, figures
from fedpdm.metrics.intervals import Estimate
from fedpdm.metrics.numbers import evaluate_numbers
from fedpdm.metrics.predictions import Predictions, predicted
from fedpdm.metrics.times import evaluate_times

__all__ = ["BALANCED", "Counts", "Estimate", "Predictions", "choose_threshold", "count", "counts_of", "evaluate"]
__all__ += ["evaluate_numbers", "evaluate_times", "figures", "metrics_of_counts", "predicted", "vector_of"]
