"""Kernels to machine code: a machine is a row of facts, a family is a folder."""
