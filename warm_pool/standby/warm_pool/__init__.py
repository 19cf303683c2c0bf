"""The node agent: warm pool, artifact cache, door."""
