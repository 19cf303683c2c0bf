"""The public HTTP server: authentication, admission, routing and the relay to the doors."""
