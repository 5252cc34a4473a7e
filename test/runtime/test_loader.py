"""The Python side: the file's writer and reader, `mlc.load`, calls with every kind of tensor, and what is refused."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import threading
from pathlib import Path

import artifacts
import mlc
import numpy as np
import pytest
from mlc import artifact, info, native, structure, tensors


@pytest.fixture(scope="module")
def model(artifact_folder: Path) -> mlc.Model:
    return mlc.load(artifact_folder / "affine.mlc", threads=2)


def rows(count: int = 5) -> np.ndarray:
    return np.random.default_rng(count).standard_normal((count, artifacts.COLUMNS), dtype=np.float32)


def test_import_is_light() -> None:
    code = (
        "import time; start = time.process_time(); import mlc; took = time.process_time() - start; import sys; "
        "print([name for name in ('mlir', 'torch', 'onnx', 'numpy') if name in sys.modules], took)"
    )
    outputs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout for _ in range(3)]
    assert all(text.startswith("[] ") for text in outputs)
    assert min(float(text.split()[-1]) for text in outputs) < 0.1


def test_load_imports_no_compiler(artifact_folder: Path) -> None:
    code = (
        f"import mlc, sys; mlc.load({str(artifact_folder / 'affine.mlc')!r}); "
        "print([name for name in ('mlir', 'torch', 'onnx', 'mlc.dialects', 'mlc.tools') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_load_and_call_import_little(artifact_folder: Path) -> None:
    """What a process pays for before its first output: numpy and this package's own few modules."""
    code = (
        "import numpy as np, sys; before = set(sys.modules); import mlc; "
        f"mlc.load({str(artifact_folder / 'affine.mlc')!r})(np.zeros((1, 8), np.float32), np.int64(0)); "
        "print(*sorted(name for name in set(sys.modules) - before if name.split('.')[0] not in ('mlc', 'json')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    little = {"__future__", "_json", "atexit", "importlib._abc", "importlib.util", "mmap"}
    assert set(done.stdout.split()) <= little, done


def test_description(model: mlc.Model) -> None:
    assert model.inputs == artifacts.META.inputs
    assert model.outputs == artifacts.META.outputs
    assert model.symbols == artifacts.META.symbols
    assert model.info == artifacts.INFO
    assert model.threads == 2
    assert repr(model).startswith("mlc.Model(x: f32[B, 8], row: i64[] -> y: f32[B, 8]; ")


@pytest.mark.parametrize("count", [1, 5, 64])
def test_call(model: mlc.Model, count: int) -> None:
    x = rows(count)
    result = model(x, row=np.int64(0))
    assert list(result) == ["y", "cache"]
    assert result["cache"] is None
    np.testing.assert_allclose(result["y"], artifacts.reference(x), rtol=1e-6)


def test_load_from_bytes(artifact_folder: Path) -> None:
    data = (artifact_folder / "affine.mlc").read_bytes()
    x = rows()
    for blob in (data, bytearray(data), memoryview(b"x" + data)[1:]):
        np.testing.assert_allclose(mlc.load(blob, threads=1)(x, 0)["y"], artifacts.reference(x), rtol=1e-6)


def test_large_files_are_read(artifact_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlc.loader._LARGE_FILE_BYTES", 1)
    x = rows()
    read, mapped = (mlc.load(artifact_folder / "affine.mlc", large_pages=wanted) for wanted in (True, False))
    assert tensors.address(read._blob) % (1 << 21) == 0
    assert read._blob.flags.writeable and not mapped._blob.flags.writeable
    assert read(x, 0)["y"].tobytes() == mapped(x, 0)["y"].tobytes()
    (tmp_path / "short.mlc").write_bytes((artifact_folder / "affine.mlc").read_bytes()[:-64])
    with pytest.raises(mlc.MlcError, match="the file is truncated"):
        mlc.load(tmp_path / "short.mlc")


def test_threads_do_not_change_bits(artifact_folder: Path) -> None:
    x = rows(63)
    results = [mlc.load(artifact_folder / "affine.mlc", threads=count)(x, 0)["y"] for count in (1, 2, 3)]
    assert all(result.tobytes() == results[0].tobytes() for result in results)


def test_calls_from_many_threads(model: mlc.Model) -> None:
    failures: list[str] = []

    def work(count: int) -> None:
        x = rows(count)
        for _ in range(200):
            if not np.allclose(model(x, 0)["y"], artifacts.reference(x)):
                failures.append(f"{count} rows differ")

    callers = [threading.Thread(target=work, args=(count,)) for count in (3, 17, 64)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert failures == []


def test_layouts_are_copied(model: mlc.Model) -> None:
    x = rows(12)
    unaligned = np.frombuffer(b"\0" + x.tobytes(), dtype=np.uint8)[1:].view(np.float32).reshape(x.shape)
    for same in (x[::2], np.asfortranarray(x), x[::-1], unaligned, x.astype(">f4")):
        np.testing.assert_allclose(model(same, 0)["y"], artifacts.reference(np.asarray(same, np.float32)), rtol=1e-6)


def test_out_is_written_in_place(model: mlc.Model) -> None:
    x = rows()
    y = np.zeros((5, artifacts.COLUMNS), np.float32)
    strided = np.zeros((5, 2 * artifacts.COLUMNS), np.float32)[:, ::2]
    assert model(x, 0, out=[y])[0] is y
    model(x, 0, out={"y": strided, "cache": None})
    for written in (y, strided):
        np.testing.assert_allclose(written, artifacts.reference(x), rtol=1e-6)
    with pytest.raises(mlc.MlcError, match=r"out 'y' is float32\[4, 8\]; the model gives float32\[5, 8\]"):
        model(x, 0, out=[y[:4]])


class OnlyDlpack:
    """A tensor that has nothing but the protocol."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **options: object) -> object:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


def test_dlpack(model: mlc.Model) -> None:
    x = rows()
    np.testing.assert_allclose(model(OnlyDlpack(x), 0)["y"], artifacts.reference(x), rtol=1e-6)


def test_torch(model: mlc.Model) -> None:
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(rows(6)).requires_grad_()
    result = model(x, torch.tensor(0))["y"]
    assert isinstance(result, torch.Tensor)
    np.testing.assert_allclose(result.numpy(), artifacts.reference(x.detach().numpy()), rtol=1e-6)
    transposed = torch.from_numpy(np.ascontiguousarray(rows(6).T)).T
    np.testing.assert_allclose(model(transposed, 0)["y"].numpy(), artifacts.reference(rows(6)), rtol=1e-6)
    y = torch.zeros(6, artifacts.COLUMNS)
    assert model(x, 0, out=[y])[0] is y
    np.testing.assert_allclose(y.numpy(), artifacts.reference(x.detach().numpy()), rtol=1e-6)


def test_short_way_of_calls(artifact_folder: Path) -> None:
    """Repeated calls on numpy arrays go past the Python side's checks; whatever differs goes the long way."""
    opened = mlc.load(artifact_folder / "affine.mlc", threads=1)
    row, x = np.int64(0), rows()
    assert opened._run_arrays((x, row)) is None  # nothing is planned yet
    want = opened(x, row)["y"].tobytes()
    frozen = rows()
    frozen.flags.writeable = False
    for same in (x, frozen, np.frombuffer(x.tobytes(), np.float32).reshape(x.shape)):
        results = opened._run_arrays((same, row))
        assert results is not None and results[0].tobytes() == want
    unaligned = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(x.shape)
    others = [rows(6), x.astype(float), x.astype(np.int32), x.astype(">f4"), x[::-1], np.asfortranarray(x), unaligned]
    for other in (*others, x[0], x.tolist(), None):
        assert opened._run_arrays((other, row)) is None
    assert opened(rows(6), row)["y"].shape == (6, artifacts.COLUMNS)
    with pytest.raises(mlc.MlcError, match="INDEX_BOUNDS: second_affine"):
        opened(rows(6), np.int64(7))


def test_bound_call(artifact_folder: Path) -> None:
    opened = mlc.load(artifact_folder / "affine.mlc", threads=2)
    x, row, y = rows(), np.array(0), np.zeros((5, artifacts.COLUMNS), np.float32)
    bound, into = opened.bind(x, row), opened.bind(x, row, out=[y])
    for count in range(3):
        x += count
        assert bound() is bound.result
        into()
        np.testing.assert_allclose(bound.result["y"], artifacts.reference(x), rtol=1e-6)
        np.testing.assert_allclose(y, artifacts.reference(x), rtol=1e-6)
    row[...] = 9
    with pytest.raises(mlc.MlcError, match="INDEX_BOUNDS: second_affine"):
        bound()
    with pytest.raises(mlc.MlcError, match="input 'x' cannot be read in place"):
        opened.bind(x[::-1], row)
    with pytest.raises(mlc.MlcError, match="out cannot be written in place"):
        opened.bind(x, row, out=[np.zeros((artifacts.COLUMNS, 5), np.float32).T])
    opened.close()
    with pytest.raises(mlc.MlcError, match="the model is closed"):
        bound()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m(rows()), "BAD_STATE: input 'row' is missing"),
        (lambda m: m(row=0), "BAD_STATE: input 'x' is missing"),
        (lambda m: m(rows(), 0, z=1), "BAD_ARGUMENT: the model has no input 'z'; it takes x, row"),
        (lambda m: m(rows(), 0, x=1), "BAD_ARGUMENT: input 'x' is given twice, by position and by name"),
        (lambda m: m(1, 2, 3), "BAD_ARGUMENT: 3 arguments; the model takes x, row"),
        (lambda m: m(rows().astype(float), 0), "BAD_TYPE: input 'x' has type f64; the model takes f32"),
        (lambda m: m(rows(65), 0), "OUT_OF_RANGE: input 'x' dim 0 is 65; symbol B allows 1..64"),
        (lambda m: m(rows()[:, :7], 0), "BAD_SHAPE: input 'x' dim 1 is 7; the model takes 8"),
        (lambda m: m(rows()[0], 0), "BAD_SHAPE: input 'x' has 1 dims; the model takes 2"),
        (lambda m: m(None, 0), "BAD_ARGUMENT: input 'x' is None; the model takes a tensor"),
        (lambda m: m(object(), 0), "BAD_TYPE: input 'x': a object is not a tensor"),
        (lambda m: m(rows(), 5), "INDEX_BOUNDS: second_affine: index 5 is out of bounds for size 5"),
    ],
)
def test_refusals(model: mlc.Model, call: object, message: str) -> None:
    with pytest.raises(mlc.MlcError) as caught:
        call(model)  # type: ignore[operator]
    assert str(caught.value).startswith(message)
    np.testing.assert_allclose(model(rows(), 0)["y"], artifacts.reference(rows()), rtol=1e-6)  # and goes on working


def test_damage_is_refused(artifact_folder: Path, tmp_path: Path) -> None:
    data = bytearray((artifact_folder / "affine.mlc").read_bytes())
    for blob, message in (
        (b"", "the file is empty"),
        (b"PK\3\4" + bytes(100), "not an mlc artifact"),
        (bytes(data[:-64]), "the file is truncated"),
    ):
        path = tmp_path / "damaged.mlc"
        path.write_bytes(blob)
        with pytest.raises(mlc.MlcError, match=message):
            mlc.load(path)
    weights = artifact.read_artifact(bytes(data))
    offset = next(row.offset for row in weights.sections if row.kind == artifact.WEIGHTS)
    data[offset] ^= 1
    with pytest.raises(mlc.MlcError, match="BAD_CHECKSUM: the file is damaged: the checksum of section 3"):
        mlc.load(bytes(data))
    mlc.load(bytes(data), verify="header")
    with pytest.raises(artifact.FormatError, match="checksum is wrong"):
        artifact.read_artifact(bytes(data))
    with pytest.raises(ValueError, match="verify"):
        mlc.load(bytes(data), verify="none")


def test_missing_feature_is_named() -> None:
    features = native.feature_names(artifact.ARCHES[artifacts.HOST])
    lacking = [name for bit, name in enumerate(features) if not native.query_cpu().features >> bit & 1]
    if not lacking:
        pytest.skip("this CPU has every feature")
    target = artifacts.target(features=(lacking[-1],))
    blob = artifact.artifact_bytes(artifacts.META, [target], artifacts.INFO, artifacts.chunks())
    arch = artifacts.HOST.replace("_", "-")
    with pytest.raises(mlc.MlcError, match=f"this artifact needs {arch} {lacking[-1]}; this CPU lacks it"):
        mlc.load(blob)
    both = [target, artifacts.target()]
    blob = artifact.artifact_bytes(artifacts.META, both, artifacts.INFO, artifacts.chunks())
    np.testing.assert_allclose(mlc.load(blob)(rows(), 0)["y"], artifacts.reference(rows()), rtol=1e-6)


def test_equal_weights_of_targets_are_stored_once() -> None:
    def sections(*weights: float) -> list[int]:
        targets = [
            artifact.Target(artifacts.target().info, b"code", [artifact.Chunk(64, np.full(9, w))]) for w in weights
        ]
        data = artifact.artifact_bytes(artifacts.META, targets, {})
        return [row.target_index for row in artifact.read_artifact(data).sections if row.kind == artifact.WEIGHTS]

    assert sections(1) == [0]
    assert sections(1, 2) == [0, 1]
    assert sections(2, 1, 1) == [artifact.ALL_TARGETS, 0]


def test_info_is_packed() -> None:
    rows = [{"name": f"k{at}", "source": "some/model.py:47 (layers.3)"} for at in range(300)]
    for wanted in ({}, {"input_tree": {"kind": "leaf"}, "kernels": rows[:2]}, {"output_tree": None, "kernels": rows}):
        section = info.pack_info(wanted)
        assert info.unpack_info(section + bytes(40)) == wanted
        assert len(section) < 4096
        assert {key for key in wanted if key.endswith("tree")} <= set(info.plain_info(section))


def test_profile(model: mlc.Model) -> None:
    times = model.profile(rows(), 0)
    assert sorted(row.name for row in times) == ["first_affine", "second_affine"]
    assert all(row.launch_count == 1 for row in times)


def test_close(artifact_folder: Path) -> None:
    with mlc.load(artifact_folder / "affine.mlc", threads=2) as opened:
        opened(rows(), 0)
    with pytest.raises(mlc.MlcError, match="the model is closed"):
        opened(rows(), 0)
    opened.close()
    for _ in range(20):
        mlc.load(artifact_folder / "affine.mlc", threads=3)(rows(), 0)
    gc.collect()


def test_writer_round_trip() -> None:
    own = [artifact.Chunk(64, np.arange(3, dtype=np.int16)), artifact.Chunk(0, b"abc")]
    targets = [artifacts.target(), artifact.Target(artifact.TargetInfo("aarch64", ("neon", "sve"), sve_bits=256),
                                                   artifacts.image("aarch64"), own)]  # fmt: skip
    meta = artifact.Meta(
        (artifact.Symbol("B", 0, 9),),
        tuple(artifact.TensorInfo(f"in {name}", name, (1, "B", None)) for name in artifact.DTYPES),
        (artifact.TensorInfo("größe", "bool", ()),),
    )
    arguments = (meta, targets, {"a": [1, None, "ü"]}, artifacts.chunks())
    data = artifact.artifact_bytes(*arguments, signature=b"sig")
    assert data == artifact.artifact_bytes(*arguments, signature=b"sig")
    read = artifact.read_artifact(data)
    assert read.meta == meta
    assert read.targets == tuple(target.info for target in targets)
    assert read.info == {"a": [1, None, "ü"]}
    weights = read.section(artifact.WEIGHTS, 1)
    assert weights is not None
    assert bytes(weights) == b"abc" + bytes(61) + bytes([0, 0, 1, 0, 2, 0]) + bytes(58)
    assert read.section(artifact.WEIGHTS, 0) == read.section(artifact.WEIGHTS)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: artifact.pack_meta(artifact.Meta(inputs=(artifact.TensorInfo("x", "f8"),))), "unknown dtype 'f8'"),
        (lambda: artifact.pack_meta(artifact.Meta(inputs=(artifact.TensorInfo("x", "f32", ("N",)),))), "no symbol 'N'"),
        (lambda: artifact.pack_meta(artifact.Meta(inputs=(artifact.TensorInfo("x", "f32", (1,) * 17),))), "rank 17"),
        (lambda: artifact.pack_meta(artifact.Meta((artifact.Symbol("N", 3, 2),))), "symbol N has range 3..2"),
        (lambda: artifact.pack_target(artifact.TargetInfo("x86_64", ("mmx",))), "no x86_64 feature 'mmx'"),
        (lambda: artifact.pack_target(artifact.TargetInfo("vax")), "unknown arch 'vax'"),
        (lambda: artifact.artifact_bytes(artifacts.META, [], {}), "at least one target"),
        (
            lambda: artifact.artifact_bytes(
                artifacts.META, [artifacts.target()], {}, [artifact.Chunk(0, b"ab"), artifact.Chunk(1, b"c")]
            ),
            "weights overlap",
        ),
    ],
)
def test_writer_refuses(make: object, message: str) -> None:
    with pytest.raises(artifact.FormatError, match=message):
        make()  # type: ignore[operator]


def test_lists_agree_with_the_library() -> None:
    library = native.library()
    names = [library.mlc_dtype_name(index).decode() for index in range(len(artifact.DTYPES))]
    assert names == list(artifact.DTYPES)
    assert library.mlc_dtype_name(len(names)) is None
    header = (artifacts.ROOT / "runtime/include/mlc_rt.h").read_text()
    for name, code in artifact.ARCHES.items():
        assert f"MLC_ARCH_{name.upper()} UINT32_C({code})" in header
    assert ctypes.sizeof(native.Tensor) == 160


def test_structures_hold_nothing() -> None:
    """A result that nobody holds is freed at once: its pages serve the next call, without page faults."""
    array = np.zeros(4)
    gc.collect()
    gc.disable()
    try:
        before = sys.getrefcount(array)
        structure.unflatten({"kind": "tuple", "items": [{"kind": "leaf"}]}, [array])
        assert sys.getrefcount(array) == before
    finally:
        gc.enable()


def test_structures() -> None:
    leaf = {"kind": "leaf"}
    nested = {"kind": "list", "items": [leaf, {"kind": "none"}]}
    tree = {"kind": "tuple", "items": [leaf, nested, {"kind": "dict", "keys": ["k"], "items": [leaf]}]}
    value = (1, [2, None], {"k": 3})
    assert structure.flatten(tree, value, "x") == [1, 2, 3]
    assert structure.unflatten(tree, [1, 2, 3]) == value
    with pytest.raises(structure.StructureError, match=r"x\[1\] is a tuple of 1; the model takes a list of 2"):
        structure.flatten(tree, (1, (2,), {"k": 3}), "x")
    with pytest.raises(structure.StructureError, match=r"x\[2\] lacks 'k'"):
        structure.flatten(tree, (1, [2, None], {}), "x")
