"""Runs on disk: train, record, read again."""
