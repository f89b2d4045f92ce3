"""The quality of a model on rows that it was not trained on, each figure with its interval."""

from fedpdm.metrics.counts import Counts, count, counts_of, metrics_of_counts, vector_of
from fedpdm.metrics.evaluate import BALANCED, choose_threshold, evaluate, figures
from fedpdm.metrics.intervals import Estimate
from fedpdm.metrics.numbers import evaluate_numbers
from fedpdm.metrics.predictions import Predictions, predicted
from fedpdm.metrics.sums import metrics_of_sums, number_sums, sums_sensitivity, sums_size
from fedpdm.metrics.time_counts import TIME_SENSITIVITY, metrics_of_times, time_counts
from fedpdm.metrics.times import evaluate_times

__all__ = ["BALANCED", "Counts", "Estimate", "Predictions", "choose_threshold", "count", "counts_of", "evaluate"]
__all__ += ["evaluate_numbers", "evaluate_times", "figures", "metrics_of_counts", "predicted", "vector_of"]
__all__ += ["TIME_SENSITIVITY", "metrics_of_sums", "metrics_of_times", "number_sums", "sums_sensitivity", "sums_size"]
__all__ += ["time_counts"]
