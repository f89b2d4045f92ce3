"""A package of another author: one file and one row for every kind of choice."""
