"""Hostile clients: the check of every message against the band, and simulated attackers."""
