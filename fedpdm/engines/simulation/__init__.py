"""The simulator: many clients in one process."""
