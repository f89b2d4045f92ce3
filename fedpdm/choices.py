"""The one table of everything with a name: algorithms, losses, penalties and feature maps, with their options.

A row holds the name, the title, the options with their defaults, and the place of the function that makes it. Settings, policy,
command line, report, studies and documentation read these tables. Nothing here imports JAX: a function is imported when it is
first used. Another package adds rows with `register`, or names them as an entry point of the group "fedpdm.plugins".
"""

import re

from fedpdm.registry import (
    AlgorithmChoice,
    Choice,
    FeatureMapChoice,
    LossChoice,
    Option,
    PenaltyChoice,
    Table,
    register,
    unregister,
)

__all__ = ["Option", "Choice", "AlgorithmChoice", "LossChoice", "PenaltyChoice", "FeatureMapChoice"]
__all__ += ["ALGORITHMS", "LOSSES", "PENALTIES", "FEATURE_MAPS", "register", "unregister", "is_table"]

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

ALGORITHMS: Table[AlgorithmChoice] = Table(
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
    ],
)

LOSSES: Table[LossChoice] = Table(
    "loss",
    [
        LossChoice(
            "logistic", "logistic", "fedpdm.problem.losses:logistic", (), "The paper's loss: the score of the true class only."
        ),
        LossChoice("softmax", "softmax", "fedpdm.problem.losses:softmax", (), "Cross-entropy of the softmax of all scores."),
    ],
)

GAMMA = Option("gamma", 0.0, "strength of the penalty", "strength", {"ge": 0})
MIX = Option("penalty_mix", 0.5, "share of L1 in the elastic net", "mix", {"ge": 0, "le": 1})
CONCAVITY = Option("penalty_concavity", 3.7, "concavity of MCP and SCAD (SCAD: above 2)", "concavity", {"gt": 0})
LOWER = Option("penalty_lower", -1.0, "lower limit of the box", "lower")
UPPER = Option("penalty_upper", 1.0, "upper limit of the box", "upper")

_PENALTY = "fedpdm.problem.penalties"
PENALTIES: Table[PenaltyChoice] = Table(
    "penalty",
    [
        PenaltyChoice("none", "", f"{_PENALTY}:none", (), "No penalty."),
        PenaltyChoice("l1", "an L1 penalty", f"{_PENALTY}:l1", (GAMMA,), "Sum of absolute values: sparse weights.", True),
        PenaltyChoice(
            "elastic-net", "an elastic net", f"{_PENALTY}:elastic_net", (GAMMA, MIX), "A mixture of L1 and L2.", True
        ),
        PenaltyChoice("l2", "an L2 penalty", f"{_PENALTY}:l2", (GAMMA,), "Half the sum of squares: small weights.", True),
        PenaltyChoice(
            "mcp", "the penalty MCP", f"{_PENALTY}:mcp", (GAMMA, CONCAVITY), "Like L1 for small weights, constant beyond.", True
        ),
        PenaltyChoice(
            "scad", "the penalty SCAD", f"{_PENALTY}:scad", (GAMMA, CONCAVITY), "Like MCP, with a straight part first.", True
        ),
        PenaltyChoice("l0", "an L0 penalty", f"{_PENALTY}:l0", (GAMMA,), "The number of weights that are not zero."),
        PenaltyChoice(
            "group-lasso", "a group lasso", f"{_PENALTY}:group_lasso", (GAMMA,), "A feature is kept or dropped by all classes."
        ),
        PenaltyChoice("box", "weights kept in a box", f"{_PENALTY}:box", (LOWER, UPPER), "Every weight within two bounds."),
    ],
)

SCATTERING_SCALE = Option("scattering_scale", 2, "scales J; one feature per 2^J pixels a side", limits={"ge": 1, "le": 6})
SCATTERING_CENTRE = Option(
    "scattering_centre",
    "auto",
    "strokes subtracts the common part of made-up pen strokes; auto: for MNIST and digits",
    values=("auto", "none", "strokes"),
)
FOURIER_COUNT = Option("fourier_count", 2000, "number of random cosines", limits={"ge": 1})
FOURIER_BANDWIDTH = Option("fourier_bandwidth", 1.0, "distance at which two examples are unlike", limits={"gt": 0})
FEATURES_SEED = Option("features_seed", 0, "public seed that the cosines are drawn from", limits={"ge": 0})

_MAPS, _NODES = "fedpdm.data.features", "fedpdm.export.onnx.maps"
FEATURE_MAPS: Table[FeatureMapChoice] = Table(
    "feature map",
    [
        FeatureMapChoice("raw", "raw", f"{_MAPS}:raw", (), "The features as they are loaded."),
        FeatureMapChoice(
            "scattering",
            "wavelet scattering",
            f"{_MAPS}:scattering",
            (SCATTERING_SCALE, SCATTERING_CENTRE),
            "Images: wavelet scattering of orders 0 to 2.",
            f"{_NODES}:scattering",
        ),
        FeatureMapChoice(
            "fourier",
            "random cosines",
            f"{_MAPS}:fourier",
            (FOURIER_COUNT, FOURIER_BANDWIDTH, FEATURES_SEED),
            "Anything: random cosines of the example, close to a Gaussian kernel.",
            f"{_NODES}:fourier",
        ),
        FeatureMapChoice(
            "piecewise",
            "hat functions",
            f"{_MAPS}:piecewise",
            (),
            "Tables: hat functions over public knots, and indicators of levels.",
            f"{_NODES}:piecewise",
        ),
    ],
)


def is_table(name: str) -> bool:
    """Tell whether the name of a data set is the path of a table: it has a dot, a slash or a colon.

    Parameters
    ----------
    name : str
        data.name of the settings.

    Returns
    -------
    bool
        True for a path, False for a known data set.

    Examples
    --------
    >>> is_table("people.csv"), is_table("mnist")
    (True, False)
    """
    return bool(re.search(r"[./\\:]", name))
