"""The .pt2 reader: what it reads, without torch; what it refuses, and in which words."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from mlc.dialects import dims
from mlc.frontend.pt2 import read_pt2
from mlc.frontend.record import Input, Program, ReadError, Ref, call_tree, tree_of, user_loc
from mlc.frontend.symexpr import read_expr

torch = pytest.importorskip("torch")


class Small(torch.nn.Module):
    """A bit of everything that the format has: weights of several kinds, symbols, nested inputs and outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
        self.register_buffer("narrow", torch.arange(4, dtype=torch.bfloat16))
        self.register_buffer("scratch", torch.ones(4), persistent=False)
        self.tied = self.layer.weight
        self.flipped = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3).t())

    def forward(self, x: torch.Tensor, more: dict[str, torch.Tensor], scale: float = 2.0) -> dict:
        rows = self.layer(x).view(x.shape[0] * x.shape[1], 8)
        out = rows[1:] * scale + torch.tensor([1.0] * 8)
        return {"out": out, "rest": [more["y"] @ self.flipped[:2], x.shape[0] * 2, None], "half": self.narrow}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, object]:
    batch, length = torch.export.Dim("batch", min=2, max=64), torch.export.Dim("length", max=32)
    shapes = ({0: batch, 1: length}, {"y": None}, None)
    inputs = (torch.randn(3, 4, 8), {"y": torch.ones(5, 2)}, 2.0)
    exported = torch.export.export(Small(), inputs, dynamic_shapes=shapes, strict=False)
    path = tmp_path_factory.mktemp("pt2") / "small.pt2"
    torch.export.save(exported, path)
    return path, exported


def test_reads_without_torch(program: tuple[Path, object]) -> None:
    path, _ = program
    code = f"import sys, mlc.frontend.pt2 as p; p.read_pt2({str(path)!r}); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_symbols_and_shapes(program: tuple[Path, object]) -> None:
    record = read_pt2(program[0])
    (batch, batch_range), (length, length_range) = record.symbols.items()
    assert batch_range == (2, 64) and length_range[1] == 32
    assert record.graph.values["x"].shape == (batch, length, 8)
    view = next(node for node in record.graph.nodes if node.target == "aten.view.default")
    assert set(record.graph.values[view.outputs[0]].shape[0].split("*")) == {batch, length}
    assert view.args[1][1] == 8 and isinstance(view.args[1][0], Ref)


def test_weights_are_views_of_the_file(program: tuple[Path, object]) -> None:
    path, exported = program
    record = read_pt2(path)
    for name, weight in record.weights.items():
        tensor = exported.state_dict.get(name, exported.constants.get(name))
        array = weight.array()
        assert not array.flags.writeable and not array.flags.owndata
        np.testing.assert_array_equal(array.astype(np.float32), tensor.detach().float().numpy())
    assert record.weights["narrow"].array().dtype.name == "bfloat16"
    assert record.weights["flipped"].strides == (1, 3)


def test_call_and_result_structure(program: tuple[Path, object]) -> None:
    record = read_pt2(program[0])
    assert record.input_tree["keys"] == ["x", "more"], "an argument fixed to a number is no argument any more"
    assert record.input_tree["items"][1]["keys"] == ["y"]
    assert record.output_tree["keys"] == ["out", "rest", "half"]
    assert record.output_tree["items"][1]["kind"] == "list" and len(record.output_tree["items"][1]["items"]) == 3


def test_locations_are_the_users(program: tuple[Path, object]) -> None:
    record = read_pt2(program[0])
    linear = next(node for node in record.graph.nodes if node.target == "aten.linear.default")
    assert linear.loc.file == __file__ and linear.loc.line == Small.forward.__code__.co_firstlineno + 1
    assert linear.loc.module == "layer"


def test_same_record_as_from_memory(program: tuple[Path, object]) -> None:
    from mlc.frontend.exported_program import read_exported_program

    path, exported = program
    read, walked = read_pt2(path), read_exported_program(exported)
    assert [(n.target, n.outputs, n.loc) for n in read.graph.nodes] == [
        (n.target, n.outputs, n.loc) for n in walked.graph.nodes
    ]
    assert (read.inputs, read.symbols) == (walked.inputs, walked.symbols)
    assert _types(read) == _types(walked)
    assert (read.input_tree, read.output_tree) == (walked.input_tree, walked.output_tree)
    assert [str(o.arg) for o in read.outputs] == [str(o.arg) for o in walked.outputs]


def _types(program: Program) -> dict[str, object]:
    """Every tensor's type, with sizes in canonical form: sympy spells one sum in several orders."""
    tensors = {name: value for name, value in program.graph.values.items() if value.shape is not None}
    return {name: (value.dtype, [dims.parse(str(size)) for size in value.shape]) for name, value in tensors.items()}


def _refusal(path: Path) -> str:
    with pytest.raises(ReadError) as caught:
        read_pt2(path)
    return str(caught.value)


def test_refuses_what_is_no_pt2(tmp_path: Path) -> None:
    assert "no such file" in _refusal(tmp_path / "missing.pt2")
    (tmp_path / "text.pt2").write_text("hello")
    assert "not a .pt2 file" in _refusal(tmp_path / "text.pt2")
    torch.save({"a": torch.ones(2)}, tmp_path / "checkpoint.pt")
    assert "a torch.save checkpoint" in _refusal(tmp_path / "checkpoint.pt")


@pytest.mark.parametrize("kept", [0.2, 0.5, 0.9, 0.999])
def test_refuses_a_truncated_file(program: tuple[Path, object], tmp_path: Path, kept: float) -> None:
    raw = program[0].read_bytes()
    cut = tmp_path / "cut.pt2"
    cut.write_bytes(raw[: int(len(raw) * kept)])
    assert "truncated or damaged" in _refusal(cut)


def test_damaged_files_are_refused_or_read(program: tuple[Path, object], tmp_path: Path) -> None:
    """Wrong bytes give a ReadError, or change weights; nothing else is raised."""
    raw, random, path = program[0].read_bytes(), np.random.default_rng(0), tmp_path / "damaged.pt2"
    refused = 0
    for _ in range(300):
        damaged = bytearray(raw)
        for at in random.integers(len(raw), size=random.integers(1, 6)):
            damaged[at] = random.integers(256)
        path.write_bytes(damaged)
        try:
            for weight in read_pt2(path).weights.values():
                weight.array().sum()
        except ReadError:
            refused += 1
    assert refused > 100


def _rewritten(source: Path, target: Path, edit: dict[str, bytes | None]) -> Path:
    """A copy of the archive with members replaced (or left out, where None), by the end of their names."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            found = next((value for end, value in edit.items() if name.endswith(end)), old.read(name))
            if found is not None:
                new.writestr(name, found)
    return target


def test_refuses_other_schemas_and_missing_members(program: tuple[Path, object], tmp_path: Path) -> None:
    path, _ = program
    with zipfile.ZipFile(path) as archive:
        name = next(n for n in archive.namelist() if n.endswith("models/small.json") or "/models/" in n)
        document = json.loads(archive.read(name))
    document["schema_version"]["major"] = 9
    newer = _rewritten(path, tmp_path / "newer.pt2", {name: json.dumps(document).encode()})
    assert "schema 9." in _refusal(newer) and "export the model again" in _refusal(newer)
    assert "weight_0 is missing" in _refusal(_rewritten(path, tmp_path / "less.pt2", {"weight_0": None}))
    assert "damaged" in _refusal(_rewritten(path, tmp_path / "json.pt2", {name: b"{"}))
    big = _rewritten(path, tmp_path / "big.pt2", {"byteorder": b"big"})
    assert "big-endian" in _refusal(big)


def test_a_short_weight_is_refused_when_read(program: tuple[Path, object], tmp_path: Path) -> None:
    short = _rewritten(program[0], tmp_path / "short.pt2", {"weight_0": b"1234"})
    with pytest.raises(ReadError, match="too short"):
        for weight in read_pt2(short).weights.values():
            weight.array()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Symbol('s0', positive=True, integer=True)", "s0"),
        ("Integer(7)", 7),
        ("2*s0 + 1", "2*s0 + 1"),
        ("Add(Mul(Integer(2), Symbol('s0', integer=True)), Integer(-1))", "2*s0 + -1"),
        ("FloorDiv(s0 - 1, 2) + 1", "(s0 + -1) // 2 + 1"),
        ("(s0//4)", "s0 // 4"),
        ("Mod(s0, 3)", "s0 % 3"),
        ("Max(1, s0)", "max(1, s0)"),
        ("s0**2", "s0*s0"),
        ("Mul(Rational(1, 2), Symbol('s0', integer=True))", "(s0) // 2"),
        ("ModularIndexing(s0, 2, 3)", "(s0 // 2) % 3"),
        ("-s0 + 5", "-1*s0 + 5"),
    ],
)
def test_symbolic_sizes(text: str, expected: object) -> None:
    assert read_expr(text) == expected


@pytest.mark.parametrize("text", ["s0 / s1", "sin(s0)", "s0 +", "1/2"])
def test_refuses_other_expressions(text: str) -> None:
    with pytest.raises(ReadError, match="symbolic size"):
        read_expr(text)


def test_saved_program_reads_back(program: tuple[Path, object], tmp_path: Path) -> None:
    from mlc.frontend.exported_program import read_exported_program
    from mlc.frontend.pt2_save import save

    save(program[1], tmp_path / "saved.pt2")
    save(program[1], tmp_path / "again.pt2")
    assert (tmp_path / "saved.pt2").read_bytes() == (tmp_path / "again.pt2").read_bytes()
    read, walked = read_pt2(tmp_path / "saved.pt2"), read_exported_program(program[1])
    assert read.graph == walked.graph
    assert (read.inputs, read.outputs, read.symbols) == (walked.inputs, walked.outputs, walked.symbols)
    assert (read.input_tree, read.output_tree) == (walked.input_tree, walked.output_tree)
    for name, weight in walked.weights.items():
        np.testing.assert_array_equal(read.weights[name].array().astype("f4"), weight.array().astype("f4"))


def test_an_argument_left_out_is_none(tmp_path: Path) -> None:
    class Optional(torch.nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
            return x if mask is None else x * mask

    exported = torch.export.export(Optional(), (torch.ones(2), None), strict=False)
    torch.export.save(exported, tmp_path / "optional.pt2")
    record = read_pt2(tmp_path / "optional.pt2")
    assert record.inputs[1].kind == "fixed" and record.inputs[1].value is None
    assert record.input_tree["keys"] == ["x", "mask"] and record.input_tree["items"][1]["kind"] == "none"


def test_user_loc_prefers_the_users_own_frame() -> None:
    frames = [
        ("/home/me/train.py", 3, "f"),
        ("/x/site-packages/transformers/bert.py", 7, "g"),
        ("/x/site-packages/torch/nn/linear.py", 9, "h"),
    ]
    assert user_loc(frames).line == 3
    assert user_loc(frames[1:]).line == 7
    assert user_loc(frames[2:]).line == 9
    assert user_loc([]).line == 0


def test_trees_of_containers() -> None:
    leaf = {"type": None, "context": None, "children_spec": []}
    named = {"type": "collections.OrderedDict", "context": '["a", "b"]', "children_spec": [leaf, leaf]}
    assert tree_of(named, {})["keys"] == ["a", "b"]
    output = {"type": "transformers.modeling_outputs.Output", "context": '["logits"]', "children_spec": [leaf]}
    assert tree_of(output, {})["kind"] == "dict"
    pair = {"type": "builtins.tuple", "context": "null", "children_spec": [leaf, leaf]}
    args = {"kind": "tuple", "items": [tree_of(pair, {}), {"kind": "dict", "keys": [], "items": []}]}
    inputs = [Input("param", "w", "w"), Input("user", "x"), Input("fixed", "n", value=None)]
    tree = call_tree(args, ["first", "second"], inputs)
    assert tree["keys"] == ["first", "second"] and tree["items"][1] == {"kind": "none"}
