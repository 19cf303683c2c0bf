"""Load on any endpoint, what it answered, and two of them side by side."""
