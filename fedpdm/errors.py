"""The errors that a user can cause, and can mend."""

__all__ = ["UserError", "DataError", "ConfigError", "DivergedError"]


class UserError(Exception):
    """A mistake that the user can mend: the message names the value, the limit and the way out.

    The command line prints the message in one line and ends with `exit_code`, never with a traceback.
    """

    exit_code = 2


class ConfigError(UserError):
    """A setting that is unknown, of the wrong type, out of range, or that contradicts another one."""


class DataError(UserError):
    """A data file that is missing, broken, or holds what no model can be trained on."""


class DivergedError(UserError):
    """The model became NaN or infinite during training."""
