"""Runs engines: child processes, their life, and one adapter for each kind of engine."""
