"""Values, states and rules that every component shares. Pure: no clock, no input or output."""
