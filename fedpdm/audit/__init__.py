"""Attacks on the mechanisms, and lower bounds on epsilon from them."""
