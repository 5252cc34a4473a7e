"""The same work on mlc and on its peers, side by side in one run: `python -m bench --help`."""
