"""Fixtures of the runtime's tests."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import artifacts
import pytest
from mlc import native


@pytest.fixture(scope="session", autouse=True)
def runtime_library(tmp_path_factory: pytest.TempPathFactory) -> None:
    """In a tree that was never installed, builds the shared library for the Python side."""
    try:
        native.library()
    except ImportError:
        folder = tmp_path_factory.mktemp("library")
        subprocess.run(["cmake", "-S", artifacts.ROOT, "-B", folder], check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["cmake", "--build", folder, "--target", "mlc_rt_shared"], check=True, stdout=subprocess.DEVNULL)
        os.environ["MLC_LIBRARY"] = str(next(folder.glob("libmlc_rt*.*")))


@pytest.fixture(scope="session")
def artifact_folder(runtime_library: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of artifacts.py."""
    folder = tmp_path_factory.mktemp("artifacts")
    artifacts.main(folder)
    return folder
