"""Metrics and logs: names defined once."""
