"""Comparisons of algorithms, and the paper's study."""
