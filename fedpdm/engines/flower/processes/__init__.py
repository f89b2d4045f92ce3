"""Processes, keys and folders around a deployment."""
