"""The rows, which the entry point names. Nothing here imports JAX."""

from fedpdm.choices import (
    AlgorithmChoice,
    CommandChoice,
    FeatureMapChoice,
    LossChoice,
    MetricChoice,
    Option,
    PenaltyChoice,
)

DECAY = Option("decay", 0.5, "share of the last step that is kept", limits={"ge": 0, "lt": 1})
TEMPERATURE = Option("temperature", 2.0, "divides the scores", limits={"gt": 0})
LOWEST = Option("penalty_lowest", -0.01, "the least weight that is allowed", "lowest")

ROWS = [
    AlgorithmChoice("momentum", "FedAvgM", "toys.momentum:momentum", (DECAY,), "FedAvg with momentum at the server."),
    LossChoice("tempered", "tempered softmax", "toys.tempered:tempered", (TEMPERATURE,), "Softmax with a temperature."),
    PenaltyChoice("floor", "weights above a floor", "toys.floor:floor", (LOWEST,), "Weights that are not too low."),
    FeatureMapChoice("squares", "squares", "toys.squares:squares", (), "Features and their squares.", "toys.squares:nodes"),
    MetricChoice("kappa", "Cohen's kappa", "toys.kappa:kappa", (), "agreement beyond chance"),
    CommandChoice("hello", "", "toys.hello:hello"),
]
