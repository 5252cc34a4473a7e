"""The mlc dialect: op declarations, types, verifier and numpy reference."""
