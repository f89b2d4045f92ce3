"""Words that settings take and that several rooms know. Each list has its only place here."""

from typing import Literal, get_args

__all__ = ["Coordinates", "Downlink", "Drawing", "Mode", "Noise", "Relation", "Sampling", "ThresholdAim", "ValueKind"]
__all__ += [
    "BALANCED",
    "COORDINATES",
    "DRAWINGS",
    "LARGE_FILE",
    "MODES",
    "PRIVATE_BASIS",
    "RELATIONS",
    "SAMPLINGS",
    "VALUE_KINDS",
]

# Which data sets are neighbours: they differ by one example more, or in one example.
Relation = Literal["add-remove", "replace-one"]
RELATIONS: tuple[Relation, ...] = get_args(Relation)

# What bounds one example's influence (`fedpdm.privacy.sensitivity`).
Mode = Literal["linearised", "contractive", "one-pass", "certified", "every-step", "batch-clipped"]
MODES: tuple[Mode, ...] = get_args(Mode)

# Where the noise of a deployment comes from.
Noise = Literal["secure", "simulation"]

# How a client chooses the coordinates that it sends, and the server those of the model (`fedpdm.compression.links`).
Coordinates = Literal["topk", "randk", "shared-randk", "public-topk", "noisy-topk"]
COORDINATES: tuple[Coordinates, ...] = get_args(Coordinates)
Downlink = Literal["model", "difference"]

# Bytes of a table's file from which reading it takes long enough for lines of progress.
LARGE_FILE = 10_000_000

# What a value is sent in (`fedpdm.compression.values`).
ValueKind = Literal["float32", "float16", "int8"]
VALUE_KINDS: tuple[ValueKind, ...] = get_args(ValueKind)

# Who takes part in a round (`fedpdm.participation`).
Sampling = Literal["uniform", "cycle"]
SAMPLINGS: tuple[Sampling, ...] = get_args(Sampling)

# What the threshold of a classifier can be chosen for.
ThresholdAim = Literal["balanced-accuracy"]
BALANCED: ThresholdAim = "balanced-accuracy"

# Made-up images that a public basis comes from (`fedpdm.data.basis`).
Drawing = Literal["strokes", "shapes"]
DRAWINGS: tuple[Drawing, ...] = get_args(Drawing)
PRIVATE_BASIS = "private"  # the basis that comes from the clients' features (`fedpdm.privacy.basis_release`)
