"""The rows about data that come with this package: feature maps, scalings and partitions."""

import re

from fedpdm.choices.registry import ChoiceTable
from fedpdm.choices.rows import FeatureMapChoice, Option, PartitionChoice, ScalingChoice

__all__ = ["DIRICHLET_ALPHA", "FEATURE_MAPS", "LABELS_PER_CLIENT", "PARTITIONS", "SCALINGS", "SCATTERING_CENTRE", "is_table"]

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

HASHED_COUNT = Option("hashed_count", 1024, "number of places that words are hashed to", limits={"ge": 2, "le": 2**20})
HASHED_WORDS = Option("hashed_words", 2, "longest group of words that is counted", limits={"ge": 1, "le": 5})
ENCODER = Option("encoder", "", "the .onnx file of a frozen public encoder")
ENCODER_DIGEST = Option("encoder_digest", "", "SHA-256 of that file; unset: it is pinned when a run starts")

_MAPS, _NODES = "fedpdm.data.maps", "fedpdm.export.onnx.maps"
FEATURE_MAPS: ChoiceTable[FeatureMapChoice] = ChoiceTable(
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
        FeatureMapChoice(
            "hashed",
            "hashed words",
            "fedpdm.data.texts:hashed",
            (HASHED_COUNT, HASHED_WORDS),
            "Texts: hashed words and groups of words.",
            named=True,
        ),
        FeatureMapChoice(
            "onnx",
            "frozen encoder",
            "fedpdm.data.encoders:encoder",
            (ENCODER, ENCODER_DIGEST),
            "Images, texts or tables: the output of a frozen public encoder.",
            named=True,
        ),
    ],
)


_SCALINGS, _SCALE_NODES = "fedpdm.data.scaling", "fedpdm.export.onnx.scaling"
SCALINGS: ChoiceTable[ScalingChoice] = ChoiceTable(
    "scaling",
    [
        ScalingChoice(
            "bounded",
            "scaled to [0, 1] by its bounds; a coefficient says how far the score rises from 0 to 1",
            f"{_SCALINGS}:bounded",
            (),
            "Divided by the square root of the number of a table's columns, so at most norm 1.",
            unit=False,
            onnx=f"{_SCALE_NODES}:bounded",
        ),
        ScalingChoice("unit", "each example scaled to norm 1", f"{_SCALINGS}:unit", (), "Norm 1.", onnx=f"{_SCALE_NODES}:unit"),
        ScalingChoice(
            "root",
            "square roots of the pixels, each example scaled to norm 1",
            f"{_SCALINGS}:root",
            (),
            "Signed square roots, which lift faint pixels; then norm 1.",
            onnx=f"{_SCALE_NODES}:root",
        ),
        ScalingChoice(
            "centred",
            "each example minus its own mean, scaled to norm 1",
            f"{_SCALINGS}:centred",
            (),
            "Minus the example's own mean; then norm 1.",
            onnx=f"{_SCALE_NODES}:centred",
        ),
        ScalingChoice(
            "centred-root",
            "square roots, minus the example's own mean, scaled to norm 1",
            f"{_SCALINGS}:centred_root",
            (),
            "Square roots, minus the example's own mean; then norm 1.",
            onnx=f"{_SCALE_NODES}:centred_root",
        ),
        ScalingChoice(
            "blurred",
            "square roots, smoothed, minus the example's own mean, scaled to norm 1",
            f"{_SCALINGS}:blurred",
            (),
            "Square images: square roots, smoothed, minus the image's own mean; then norm 1.",
            onnx=f"{_SCALE_NODES}:blurred",
        ),
    ],
)

LABELS_PER_CLIENT = Option("labels_per_client", 4, "different labels per client", limits={"ge": 1})
DIRICHLET_ALPHA = Option("dirichlet_alpha", 0.5, "evenness of the label mix", "alpha", {"gt": 0})

_PARTITIONS = "fedpdm.data.partition"
PARTITIONS: ChoiceTable[PartitionChoice] = ChoiceTable(
    "partition",
    [
        PartitionChoice(
            "labels",
            "each holding {labels_per_client} of the classes",
            f"{_PARTITIONS}:labels_per_client",
            (LABELS_PER_CLIENT,),
            "Clients of equal size hold examples of a few labels each.",
        ),
        PartitionChoice(
            "one-class", "each holding one class", f"{_PARTITIONS}:one_class_per_client", (), "A client holds one class."
        ),
        PartitionChoice(
            "dirichlet",
            "with label mixes from a Dirichlet distribution ({dirichlet_alpha:g})",
            f"{_PARTITIONS}:dirichlet",
            (DIRICHLET_ALPHA,),
            "Every client's label mix is drawn from a Dirichlet distribution.",
        ),
        PartitionChoice("iid", "dealt evenly", f"{_PARTITIONS}:iid", (), "Examples are shuffled and dealt evenly."),
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
