"""The web console: its static files, and what its pages are fed with."""
