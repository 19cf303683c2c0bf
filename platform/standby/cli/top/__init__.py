"""``standby top``: the console in a terminal."""
