"""The controller: how many instances, on which node, on which rung of the warm ladder."""
