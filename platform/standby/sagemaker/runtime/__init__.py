"""Invocations: forms, event streams, errors and asynchronous calls as AWS's clients expect them."""
