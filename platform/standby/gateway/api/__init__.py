"""The control routes below ``/api/v1``: models, endpoints, keys, nodes, events."""
