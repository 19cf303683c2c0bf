"""The same load on two targets, interleaved."""
