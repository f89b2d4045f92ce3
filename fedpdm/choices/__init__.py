"""The one table of what can be chosen by name, with options and defaults.

There is a table for each kind: algorithms, aggregates, losses, penalties, feature maps, scalings, partitions, metrics and
commands; `words` holds shorter lists. Settings, policy, command line, report, studies and documentation read them. Another
package adds rows with `register`, or names them as an entry point of the group "fedpdm.plugins".
"""

from fedpdm.choices.data import (
    DIRICHLET_ALPHA,
    FEATURE_MAPS,
    LABELS_PER_CLIENT,
    PARTITIONS,
    SCALINGS,
    SCATTERING_CENTRE,
    is_table,
)
from fedpdm.choices.registry import ChoiceTable, on_change, register, spelled, unregister
from fedpdm.choices.rows import (
    AggregateChoice,
    AlgorithmChoice,
    Choice,
    CommandChoice,
    FeatureMapChoice,
    LossChoice,
    MetricChoice,
    Option,
    PartitionChoice,
    PenaltyChoice,
    ScalingChoice,
)
from fedpdm.choices.tables import AGGREGATES, ALGORITHMS, COMMANDS, GAMMA, LOSSES, METRICS, PENALTIES, SERVER_RULE

__all__ = ["Option", "Choice", "AlgorithmChoice", "AggregateChoice", "LossChoice", "PenaltyChoice", "FeatureMapChoice"]
__all__ += ["ScalingChoice", "PartitionChoice", "MetricChoice", "CommandChoice", "ChoiceTable"]
__all__ += ["register", "unregister", "on_change", "spelled", "is_table"]
__all__ += ["ALGORITHMS", "AGGREGATES", "LOSSES", "PENALTIES", "FEATURE_MAPS", "SCALINGS", "PARTITIONS", "METRICS", "COMMANDS"]
__all__ += ["DIRICHLET_ALPHA", "GAMMA", "LABELS_PER_CLIENT", "SCATTERING_CENTRE", "SERVER_RULE"]
