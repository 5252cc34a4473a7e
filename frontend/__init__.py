"""Model files to the mlc dialect."""
