"""Replays traces against keep-alive policies: the live controller's pure functions, and the published ones beside them."""
