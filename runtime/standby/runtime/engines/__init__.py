"""One adapter for each kind of engine behind one small protocol."""
