"""The control routes below ``/api/v1``: models, credentials, endpoints, nodes, caches, keys, events."""
