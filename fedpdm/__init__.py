"""Federated primal-dual learning of sparse models, with differential privacy and thin links."""

__version__ = "0.1.0"
