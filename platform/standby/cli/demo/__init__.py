"""``standby demo``: the main job on a real model, measured, in one command."""
