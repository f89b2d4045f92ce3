"""The rows that come with this package: algorithms, aggregates, losses, penalties, metrics and commands.

A row says the name, the title, the options with their defaults, and where the function is that makes it. Nothing here imports
JAX: a function is imported when it is first used.
"""

from fedpdm.choices.registry import ChoiceTable
from fedpdm.choices.rows import (
    AggregateChoice,
    AlgorithmChoice,
    CommandChoice,
    LossChoice,
    MetricChoice,
    Option,
    PenaltyChoice,
)

__all__ = ["AGGREGATES", "ALGORITHMS", "COMMANDS", "GAMMA", "LOSSES", "METRICS", "PENALTIES", "SERVER_RULE"]

RHO = Option("rho", 1.0, "weight rho of the proximal term", limits={"gt": 0})
MU = Option("mu", 0.1, "weight mu of the proximal term", limits={"ge": 0})
ALPHA = Option("alpha", 0.1, "weight alpha of the proximal term", limits={"gt": 0})
SERVER_RULE = Option(
    "server_rule",
    "participants",
    'what the server averages: "participants" (the paper), "cached" or "dual-memory"',
    values=("participants", "cached", "dual-memory"),
)

ADAPTIVE = Option("adaptive", False, "the server balances rho between consensus and progress in the first 50 rounds")
RELAXATION = Option(
    "relaxation", 1.95, "how far a client's centre follows the model; 1 is without relaxation", limits={"gt": 0, "lt": 2}
)

ALGORITHMS: ChoiceTable[AlgorithmChoice] = ChoiceTable(
    "algorithm",
    [
        AlgorithmChoice(
            "fedpdm",
            "FedPDM",
            "fedpdm.algorithms.primal_dual:fedpdm",
            (RHO, SERVER_RULE, ADAPTIVE),
            "Clients keep a dual vector; the server takes the prox of the mean of primal minus dual.",
        ),
        AlgorithmChoice(
            "fedavg", "FedAvg", "fedpdm.algorithms.averaging:fedavg", (), "The mean of the models.", stateless=True
        ),
        AlgorithmChoice(
            "fedprox",
            "FedProx",
            "fedpdm.algorithms.averaging:fedprox",
            (MU,),
            "FedAvg with a proximal term at the clients.",
            stateless=True,
        ),
        AlgorithmChoice(
            "scaffold",
            "SCAFFOLD",
            "fedpdm.algorithms.control_variates:scaffold",
            (),
            "FedAvg with control variates at clients and server.",
        ),
        AlgorithmChoice(
            "feddyn",
            "FedDyn",
            "fedpdm.algorithms.dynamic:feddyn",
            (ALPHA,),
            "A proximal term and a linear one that follows the client's gradient.",
        ),
        AlgorithmChoice(
            "feddr",
            "FedDR",
            "fedpdm.algorithms.splitting:feddr",
            (RHO, RELAXATION),
            "Douglas-Rachford splitting; with relaxation 1 it is FedPDM with the cached server rule.",
        ),
        AlgorithmChoice(
            "afedpd",
            "A-FedPD",
            "fedpdm.algorithms.aligned:afedpd",
            (RHO,),
            "FedPDM whose duals of absent clients follow the model; here by one broadcast.",
        ),
    ],
)

TRIM = Option("trim", 0.1, "share of the weight that is left out at each end", limits={"ge": 0, "lt": 0.5})

REACH = Option("reach", 1.5, "most distance from the median, in median distances", limits={"gt": 0})

_AGGREGATES = "fedpdm.algorithms.aggregate"
AGGREGATES: ChoiceTable[AggregateChoice] = ChoiceTable(
    "aggregate",
    [
        AggregateChoice("mean", "mean", f"{_AGGREGATES}:mean", (), "The mean of what arrived. One client can move it."),
        AggregateChoice(
            "trimmed-mean",
            "trimmed mean",
            f"{_AGGREGATES}:trimmed_mean",
            (TRIM,),
            "The mean of every coordinate without its smallest and its largest values.",
            "the share that is left out at each end",
        ),
        AggregateChoice("median", "median", f"{_AGGREGATES}:median", (), "The median of every coordinate.", "less than half"),
        AggregateChoice(
            "geometric-median",
            "geometric median",
            f"{_AGGREGATES}:geometric_median",
            (),
            "The vector with the least sum of distances to all messages.",
            "less than half",
        ),
        AggregateChoice(
            "clipped-mean",
            "clipped mean",
            f"{_AGGREGATES}:clipped_mean",
            (REACH,),
            "The mean, after every message is pulled to within an adaptive distance of the median.",
            "less than half; each moves it by its share of that distance",
        ),
    ],
)

THRESHOLD = Option(
    "huber_threshold", 0.1, "residual from which it counts linearly, as a share of the label's range", "threshold", {"gt": 0}
)
LEVEL = Option("quantile", 0.5, "the quantile to predict; 0.5: the median", "level", {"gt": 0, "lt": 1})
SMOOTHING = Option(
    "quantile_smoothing", 0.01, "half width of the kink's smoothing, as a share of the label's range", "smoothing", {"gt": 0}
)

_NUMBER = "fedpdm.problem.regression"
LOSSES: ChoiceTable[LossChoice] = ChoiceTable(
    "loss",
    [
        LossChoice(
            "logistic", "logistic", "fedpdm.problem.losses:logistic", (), "The paper's loss: the score of the true class only."
        ),
        LossChoice("softmax", "softmax", "fedpdm.problem.losses:softmax", (), "Cross-entropy of the softmax of all scores."),
        LossChoice(
            "squared", "squared", f"{_NUMBER}:squared", (), "Half the squared residual: the mean of a number.", "number"
        ),
        LossChoice(
            "huber", "Huber", f"{_NUMBER}:huber", (THRESHOLD,), "Squared for small residuals, linear for outliers.", "number"
        ),
        LossChoice(
            "quantile",
            "smoothed pinball",
            f"{_NUMBER}:quantile",
            (LEVEL, SMOOTHING),
            "A quantile of a number, for instance its median.",
            "number",
        ),
        LossChoice("poisson", "Poisson", f"{_NUMBER}:poisson", (), "Counts with a log link.", "number"),
        LossChoice(
            "piecewise-exponential",
            "piecewise exponential",
            "fedpdm.problem.survival:piecewise_exponential",
            (),
            "A time to an event, with a constant hazard in each of some public time bands.",
            "time",
        ),
    ],
)

GAMMA = Option("gamma", 0.0, "strength of the penalty", "strength", {"ge": 0})
MIX = Option("penalty_mix", 0.5, "share of L1 in the elastic net", "mix", {"ge": 0, "le": 1})
CONCAVITY = Option("penalty_concavity", 3.7, "concavity of MCP and SCAD (SCAD: above 2)", "concavity", {"gt": 0})
LOWER = Option("penalty_lower", -1.0, "lower limit of the box", "lower")
UPPER = Option("penalty_upper", 1.0, "upper limit of the box", "upper")

_PENALTY = "fedpdm.problem.penalties"
PENALTIES: ChoiceTable[PenaltyChoice] = ChoiceTable(
    "penalty",
    [
        PenaltyChoice("none", "", f"{_PENALTY}:none", (), "No penalty."),
        PenaltyChoice("l1", "an L1 penalty", f"{_PENALTY}:l1", (GAMMA,), "Sum of absolute values: sparse weights.", True),
        PenaltyChoice(
            "elastic-net", "an elastic net", f"{_PENALTY}:elastic_net", (GAMMA, MIX), "A mixture of L1 and L2.", True
        ),
        PenaltyChoice("l2", "an L2 penalty", f"{_PENALTY}:l2", (GAMMA,), "Half the sum of squares: small weights.", True),
        PenaltyChoice(
            "mcp",
            "the penalty MCP",
            f"{_PENALTY}:mcp",
            (GAMMA, CONCAVITY),
            "Like L1 for small weights, constant beyond.",
            subgradient=True,
            convex=False,
        ),
        PenaltyChoice(
            "scad",
            "the penalty SCAD",
            f"{_PENALTY}:scad",
            (GAMMA, CONCAVITY),
            "Like MCP, with a straight part first.",
            subgradient=True,
            convex=False,
        ),
        PenaltyChoice(
            "l0", "an L0 penalty", f"{_PENALTY}:l0", (GAMMA,), "The number of weights that are not zero.", convex=False
        ),
        PenaltyChoice(
            "group-lasso", "a group lasso", f"{_PENALTY}:group_lasso", (GAMMA,), "A feature is kept or dropped by all classes."
        ),
        PenaltyChoice("box", "weights kept in a box", f"{_PENALTY}:box", (LOWER, UPPER), "Every weight within two bounds."),
    ],
)

_CLASSES, _NUMBERS = "fedpdm.metrics.classes", "fedpdm.metrics.numbers"
METRICS: ChoiceTable[MetricChoice] = ChoiceTable(
    "metric",
    [
        MetricChoice("accuracy", "Accuracy", f"{_CLASSES}:accuracy", (), "share of test rows in the right class"),
        MetricChoice(
            "majority-rate", "Majority rate", f"{_CLASSES}:majority_rate", (), "accuracy of always naming the largest class"
        ),
        MetricChoice(
            "balanced-accuracy", "Balanced accuracy", f"{_CLASSES}:balanced_accuracy", (), "mean of the classes' recalls"
        ),
        MetricChoice(
            "auc",
            "AUC",
            f"{_CLASSES}:auc",
            (),
            "chance that a row of the class has a higher score than one of the rest; of several classes the mean",
        ),
        MetricChoice(
            "log-loss",
            "Log loss",
            f"{_CLASSES}:log_loss",
            (),
            "mean of minus the logarithm of the true class's probability; lower is better",
            lower_is_better=True,
        ),
        MetricChoice(
            "brier",
            "Brier score",
            f"{_CLASSES}:brier",
            (),
            "mean squared distance of the probabilities from the truth; lower is better",
            lower_is_better=True,
        ),
        MetricChoice(
            "r2",
            "R2",
            f"{_NUMBERS}:r2",
            (),
            "share of the label's variance that predictions explain; 0 is what always predicting the mean gives",
            "number",
        ),
        MetricChoice(
            "mae", "Mean absolute error", f"{_NUMBERS}:mae", (), "in the label's units; lower is better", "number", True
        ),
        MetricChoice(
            "rmse", "Root mean squared error", f"{_NUMBERS}:rmse", (), "in the label's units; lower is better", "number", True
        ),
        MetricChoice(
            "deviance", "Mean deviance", f"{_NUMBERS}:deviance", (), "of Poisson counts; lower is better", "number", True
        ),
        MetricChoice(
            "below",
            "Share at or below the prediction",
            f"{_NUMBERS}:below",
            (),
            "should be the quantile that is predicted",
            "number",
        ),
        MetricChoice(
            "concordance",
            "Concordance",
            "fedpdm.metrics.times:concordance",
            (),
            "share of comparable pairs in which the row with the longer predicted time has its event later",
            "time",
        ),
    ],
)

_CLI = "fedpdm.cli"
COMMANDS: ChoiceTable[CommandChoice] = ChoiceTable(
    "command",
    [
        CommandChoice(name, "", f"{_CLI}.{place}")
        for name, place in (
            ("run", "run:run_command"),
            ("report", "run:report_command"),
            ("predict", "tables:predict"),
            ("export", "tables:export"),
            ("check", "check:check_command"),
            ("compare", "studies:compare_command"),
            ("reproduce", "studies:reproduce_command"),
            ("privacy", "privacy:privacy_app"),
            ("flower", "flower:flower_app"),
            ("data", "data:data_app"),
            ("features", "features:features_app"),
            ("config", "settings:config_app"),
            ("presets", "settings:presets"),
            ("theory", "theory:theory_command"),
        )
    ],
)
