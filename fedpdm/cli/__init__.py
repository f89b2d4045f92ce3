"""The command `fedpdm`: one module per group of commands."""
