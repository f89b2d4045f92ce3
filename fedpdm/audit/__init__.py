"""Attacks on the mechanisms, and what they measure."""
