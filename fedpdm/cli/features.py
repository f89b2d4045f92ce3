"""The commands `fedpdm features`: explain a public feature map, and add a public encoder."""

from pathlib import Path
from typing import Annotated

import typer

from fedpdm.cli.completion import complete_feature_map

__all__ = ["features_app"]

features_app = typer.Typer(no_args_is_help=True, help="Look at public feature maps.")

WHY_FREE = (
    "A map costs no privacy if it is a pure function of one example with nothing fitted to private data: adding or removing an "
    "example then adds or removes one row of features, of the same bounded norm, and changes no other row. Under the sound "
    "mechanism this is tested on made-up rows before training, and a map that uses other examples is refused."
)
AUTO = "scattering for images, hashed for texts, piecewise for tables."


@features_app.command("show")
def show(
    name: Annotated[
        str | None, typer.Argument(help="A map, or auto (default: all maps).", autocompletion=complete_feature_map)
    ] = None,
) -> None:
    """Explain a feature map: what it does, which data it uses, and how to switch it on.

    \b
    Example:
      fedpdm features show scattering
    """
    from fedpdm.choices import FEATURE_MAPS
    from fedpdm.data.feature_cache import feature_dir
    from fedpdm.errors import ConfigError

    if name not in (None, "auto", *FEATURE_MAPS):
        raise ConfigError(f"Unknown feature map {name!r}: choose {', '.join(FEATURE_MAPS)} or auto.")
    for key in FEATURE_MAPS if name is None else [name]:
        if key == "auto":
            print(f"auto: {AUTO}")
            continue
        shown = FEATURE_MAPS[key].build()
        print(f"{key}: {shown.sentence}")
        print(f"  depends on {shown.depends_on}" + ("; rows have norm 1, plus a constant column of 0.2" if shown.unit else ""))
        print(f"  public: {shown.why}")
        for option in FEATURE_MAPS[key].options:
            print(f"  data.{option.key} = {option.default}   # {option.description}")
        if shown.key is not None:
            print(f"  stored in {feature_dir()}, by the hash of the images and the options")
    if name is None:
        print(f"auto: {AUTO}")
    print(f"\n{WHY_FREE}\nUse: --set data.features={name or 'auto'} with data.scaling=none")


@features_app.command("add")
def add(file: Annotated[Path, typer.Argument(help="An ONNX file with one input and one vector per example.")]) -> None:
    """Add a public encoder: a copy is kept by its digest, so that runs and jobs that pin it find it.

    \b
    Example:
      fedpdm features add encoder.onnx
    """
    from fedpdm.data.encoders import OVERLAP, add_encoder

    digest, place = add_encoder(file)
    print(f"Added: {place}\nSHA-256 {digest}\n{OVERLAP}")
    print(f"Use: --set data.features=onnx --set data.encoder={file}")
