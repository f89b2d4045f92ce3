"""Errors that a user can cause and can fix."""

import importlib.util

__all__ = ["UserError", "DataError", "ConfigError", "DivergedError", "require_extra"]


class UserError(Exception):
    """A mistake that the user can fix: the message names the value, the limit and the way out.

    The command line prints the message in one line and ends with `exit_code`, never with a traceback.
    """

    exit_code = 2


class ConfigError(UserError, ValueError):
    """A setting that is unknown, has the wrong type, is out of range, or contradicts another setting."""


class DataError(UserError):
    """A data file that is missing or broken, or whose content cannot be used for training."""


class DivergedError(UserError):
    """The model became NaN or infinite during training."""


def require_extra(module: str, extra: str, purpose: str) -> None:
    """Check that an optional package is installed, before work begins that needs it.

    Parameters
    ----------
    module : str
        Name of the package's module, such as "polars".
    extra : str
        The extra of fedpdm that installs the package.
    purpose : str
        The subject of the error message: what the user asked for.

    Raises
    ------
    UserError
        If the package is not installed.

    Examples
    --------
    >>> require_extra("numpy", "tables", "A table")
    >>> require_extra("no_such_module", "tables", "A table")
    Traceback (most recent call last):
        ...
    fedpdm.errors.UserError: A table needs the package no_such_module: pip install 'fedpdm[tables]'.
    """
    if importlib.util.find_spec(module) is None:
        raise UserError(f"{purpose} needs the package {_PACKAGES.get(module, module)}: pip install 'fedpdm[{extra}]'.")


# packages whose name differs from their module
_PACKAGES = {"sklearn": "scikit-learn", "flwr": "Flower", "PIL": "Pillow"}
_PACKAGES |= {"onnxruntime_extensions": "onnxruntime-extensions"}
