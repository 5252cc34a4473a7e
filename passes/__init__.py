"""The mlc dialect to scheduled kernels: one file a pass."""
