"""The ``standby`` command: speaks HTTP to the gateway and starts the other components as children."""
