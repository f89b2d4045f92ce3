"""The one table of what can be chosen by name, with options and defaults.

There is a table for each kind: algorithms, aggregates, losses, penalties, feature maps, metrics and commands. Settings,
policy, command line, report, studies and documentation read them. Another package adds rows with `register`, or names them as
an entry point of the group "fedpdm.plugins".
"""

from fedpdm.choices.registry import Table, on_change, register, spelled, unregister
from fedpdm.choices.rows import (
    AggregateChoice,
    AlgorithmChoice,
    Choice,
    CommandChoice,
    FeatureMapChoice,
    LossChoice,
    MetricChoice,
    Option,
    PenaltyChoice,
)
from fedpdm.choices.tables import (
    AGGREGATES,
    ALGORITHMS,
    COMMANDS,
    FEATURE_MAPS,
    GAMMA,
    LOSSES,
    METRICS,
    PENALTIES,
    SCATTERING_CENTRE,
    SERVER_RULE,
    is_table,
)

__all__ = ["Option", "Choice", "AlgorithmChoice", "AggregateChoice", "LossChoice", "PenaltyChoice", "FeatureMapChoice"]
__all__ += ["MetricChoice", "CommandChoice", "Table", "register", "unregister", "on_change", "spelled", "is_table"]
__all__ += ["AGGREGATES", "ALGORITHMS", "LOSSES", "PENALTIES", "FEATURE_MAPS", "METRICS", "COMMANDS"]
__all__ += ["GAMMA", "SCATTERING_CENTRE", "SERVER_RULE"]
