"""Real inputs: photographs, sentences and recordings that installed packages ship, as arrays ready for a model."""

from __future__ import annotations

import wave
from functools import cache
from pathlib import Path

import numpy as np
from zoo import UnavailableError
from zoo_packages import alsa_recordings

SENTENCES = [
    "A compiler turns one language into another.",
    "The quick brown fox jumps over the lazy dog while the rain keeps falling on the old stone bridge.",
    "Wie spät ist es?",
    "Memory is planned ahead of time, so that nothing needs to be allocated while a model runs; the planner packs "
    "every intermediate value into one block by the times at which it is first written and last read.",
    "cat",
    "In 1969, two people walked on the Moon for 2 hours and 31 minutes.",
    "Heavy rain flooded the streets of the town.",
    "The town's roads were under water after the storm.",
]
IMAGENET_MEAN = np.array([0.485, 0.456, 0.406])
IMAGENET_STD = np.array([0.229, 0.224, 0.225])


@cache
def photo_files() -> list[Path]:
    """A portrait (ImageNet 652), a temple (442) and a flower (985)."""
    try:
        import matplotlib
        import sklearn.datasets
    except ImportError as error:
        raise UnavailableError(f"{error.name} is not installed; its photographs are the inputs") from error
    portrait = Path(matplotlib.get_data_path()) / "sample_data" / "grace_hopper.jpg"
    images = Path(sklearn.datasets.__file__).parent / "images"
    return [portrait, images / "china.jpg", images / "flower.jpg"]


def photos(size: int, mean: np.ndarray = IMAGENET_MEAN, std: np.ndarray = IMAGENET_STD) -> np.ndarray:
    """[3, 3, size, size] float32: the photographs, centre-cropped to squares, RGB, (value / 255 - mean) / std."""
    from PIL import Image

    planes = []
    for file in photo_files():
        image = Image.open(file).convert("RGB")
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        square = image.crop((left, top, left + side, top + side)).resize((size, size), Image.Resampling.BICUBIC)
        planes.append(((np.asarray(square) / 255.0 - mean) / std).transpose(2, 0, 1))
    return np.stack(planes).astype(np.float32)


def text_line(text: str, height: int, width: int) -> np.ndarray:
    """[1, 3, height, width] float32 in [-1, 1]: black text on white, as OCR models read it."""
    import matplotlib
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (width, height), "white")
    font_file = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    font = ImageFont.truetype(str(font_file), int(height * 0.6))
    ImageDraw.Draw(image).text((8, height * 0.15), text, fill="black", font=font)
    pixels = np.asarray(image).astype(np.float32) / 127.5 - 1.0
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)[None])


def text_page(height: int, width: int) -> np.ndarray:
    """[1, 3, height, width] float32, ImageNet-normalised: a page with several lines of text over a photograph."""
    import matplotlib
    from PIL import Image, ImageDraw, ImageFont

    image = Image.open(photo_files()[1]).convert("RGB").resize((width, height), Image.Resampling.BICUBIC)
    font_file = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    font = ImageFont.truetype(str(font_file), max(12, height // 10))
    draw = ImageDraw.Draw(image)
    for line in range(4):
        top = height * (0.1 + 0.22 * line)
        draw.rectangle((6, top, width - 6, top + height * 0.15), fill="white")
        draw.text((10, top), SENTENCES[line][:24], fill="black", font=font)
    pixels = (np.asarray(image) / 255.0 - IMAGENET_MEAN) / IMAGENET_STD
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)[None].astype(np.float32))


@cache
def recording(name: str, rate_hz: int = 16_000) -> np.ndarray:
    """[samples] float32 in [-1, 1]: a recording of alsa-utils such as "Front_Center", resampled."""
    from scipy.signal import resample_poly

    with wave.open(str(alsa_recordings() / f"{name}.wav")) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float64) / 32768.0
        source_hz = file.getframerate()
    return resample_poly(samples, rate_hz, source_hz).astype(np.float32)


def speech(samples: int, rate_hz: int = 16_000) -> np.ndarray:
    """[samples] float32: the alsa recordings one after the other, repeated up to the length asked."""
    names = ["Front_Center", "Rear_Left", "Noise", "Side_Right"]
    return np.resize(np.concatenate([recording(name, rate_hz) for name in names]), samples)


def windows(samples: np.ndarray, length: int, step: int) -> np.ndarray:
    """[frames, length]: overlapping pieces of a recording."""
    return np.ascontiguousarray(np.lib.stride_tricks.sliding_window_view(samples, length)[::step])


def power_spectrum(samples: np.ndarray, length: int, step: int) -> np.ndarray:
    """[frames, length // 2 + 1] float64: squared magnitudes of Hann-windowed frames."""
    return np.abs(np.fft.rfft(windows(samples, length, step) * np.hanning(length), axis=1)) ** 2


def log_power(samples: np.ndarray, length: int, step: int) -> np.ndarray:
    """[frames, length // 2 + 1] float32: natural log of the power spectrum, floored at 1e-12."""
    return np.log(np.maximum(power_spectrum(samples, length, step), 1e-12)).astype(np.float32)


def mel_spectrum(samples: np.ndarray, length: int, step: int, bands: int, rate_hz: int = 16_000) -> np.ndarray:
    """[frames, bands] float64: power in triangular bands that are even on the mel scale, 0 Hz to half the rate."""
    top = 2595 * np.log10(1 + rate_hz / 2 / 700)
    edges_hz = 700 * (10 ** (np.linspace(0, top, bands + 2) / 2595) - 1)
    bins_hz = np.fft.rfftfreq(length, 1 / rate_hz)
    low, middle, high = edges_hz[:-2, None], edges_hz[1:-1, None], edges_hz[2:, None]
    rising, falling = (bins_hz - low) / (middle - low), (high - bins_hz) / (high - middle)
    filters = np.maximum(0, np.minimum(rising, falling)) * (2 / (high - low))
    return power_spectrum(samples, length, step) @ filters.T


def log_mel(samples: np.ndarray, length: int, step: int, bands: int, rate_hz: int = 16_000) -> np.ndarray:
    """[frames, bands] float32 in about [-1, 1]: mel power in decibels below the loudest, (dB + 40) / 40."""
    power = mel_spectrum(samples, length, step, bands, rate_hz)
    decibels = 10 * np.log10(np.maximum(power / power.max(), 1e-8))
    return ((decibels + 40) / 40).astype(np.float32)
