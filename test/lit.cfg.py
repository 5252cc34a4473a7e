"""lit: every .mlir file below holds its own commands; `mlc-opt` and `FileCheck` are those of this Python."""

import os
import sys
import tempfile

import lit.formats

config.name = "mlc"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".mlir"]
config.test_source_root = os.path.dirname(__file__)
config.test_exec_root = os.path.join(tempfile.gettempdir(), f"mlc-lit-{os.getuid() if hasattr(os, 'getuid') else 0}")
# Only at the start of a command: the words also occur in file names and messages.
command = r"(?<![\w./-]){}(?![\w./-])"
config.substitutions.append((command.format("mlc-opt"), f"'{sys.executable}' -m mlc.tools.opt"))
config.substitutions.append((command.format("FileCheck"), f"'{sys.executable}' -m filecheck"))
if "PYTHONPATH" in os.environ:  # lit drops the environment but for a few names
    config.environment["PYTHONPATH"] = os.environ["PYTHONPATH"]
