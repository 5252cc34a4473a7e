"""The house rules that a command can judge: layers, sizes, names, docstrings, one list of ops, import cost,
locations."""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlc.dialects.build import load_ops
from mlc.passes.base import Pass, parse_pass, pass_names

ROOT = Path(__file__).resolve().parents[1]
LAYERS = ("frontend", "dialects", "passes", "targets", "tools")
# What each folder may import of mlc.*, besides itself. runtime/mlc imports compiler folders inside functions only.
MAY_IMPORT = {
    "dialects": set(),
    "frontend": {"dialects"},
    "passes": {"dialects"},
    "targets": {"dialects"},
    "tools": {"dialects", "frontend", "passes", "targets", "mlc"},
    "runtime": {"mlc"},
}
SOURCE_ENDINGS = (".py", ".c", ".h", ".mlir", ".ld", ".cmake")
LINES_MAX = 500
FUNCTION_LINES_MAX = 60
OPS_IN_A_LIST_MAX = 5
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "impl"}


def sources(*folders: str, endings: tuple[str, ...] = SOURCE_ENDINGS) -> list[Path]:
    """Files of the repository's own, sorted; generated and built ones left out."""
    found = []
    for folder in folders or (*LAYERS, "runtime", "test", "examples", "bench"):
        found += [p for p in (ROOT / folder).rglob("*") if p.suffix in endings and p.is_file()]
    return sorted(p for p in found if not {"build", "__pycache__"} & set(p.relative_to(ROOT).parts))


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), named(path))


def imports_of(path: Path, *, at_module_level: bool) -> Iterator[tuple[str, int]]:
    """Absolute module names that a file imports, with lines; relative ones resolved within its folder."""
    tree = tree_of(path)
    inside = {n for f in ast.walk(tree) if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef) for n in ast.walk(f)}
    package = ["mlc", *path.relative_to(ROOT).parent.parts]
    for node in ast.walk(tree):
        if at_module_level and node in inside:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *filter(None, [node.module])])
            # `from mlc import x` and `from .. import x` name submodules
            yield from ((f"{module}.{a.name}" if module == "mlc" else module, node.lineno) for a in node.names)


def layer_of(module: str) -> str | None:
    """The folder that `mlc.x.y` lies in; "mlc" for the runtime's Python side; None for other packages."""
    parts = module.split(".")
    if parts[0] != "mlc":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in LAYERS else "mlc"


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_layers(folder: str) -> None:
    allowed = MAY_IMPORT[folder] | {folder}
    wrong = []
    for path in sources(folder, endings=(".py",)):
        for module, line in imports_of(path, at_module_level=folder == "runtime"):
            layer = layer_of(module)
            if layer is not None and layer not in allowed:
                wrong.append(f"{named(path)}:{line} imports {module}")
    assert not wrong, "\n".join(wrong)


def test_compiling_files_needs_no_framework() -> None:
    """A .pt2 or .onnx file compiles where torch is not installed; only what takes torch's own objects imports it."""
    modules = "mlc.tools.driver, mlc.tools.mlc, mlc.frontend.aten, mlc.frontend.pt2, mlc.frontend.onnx"
    script = f"import sys, {modules}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not {"torch", "transformers", "onnxruntime", "sklearn"} & set(run.stdout.split())


def test_file_sizes() -> None:
    long = [f"{named(p)}: {n} lines" for p in sources() if (n := len(p.read_text().splitlines())) > LINES_MAX]
    assert not long, "\n".join(long)


def test_function_sizes() -> None:
    long = []
    for path in sources(endings=(".py",)):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno + 1 > FUNCTION_LINES_MAX:
                long.append(f"{named(path)}:{node.lineno} {node.name}: {node.end_lineno - node.lineno + 1} lines")
    assert not long, "\n".join(long)


def test_names() -> None:
    vague = [named(p) for p in sources() if set(re.split(r"[_.-]", p.name)) & VAGUE_NAMES]
    assert not vague, vague


def test_modules_say_what_they_are() -> None:
    silent = [
        named(p) for p in sources(endings=(".py",)) if p.read_text().strip() and not ast.get_docstring(tree_of(p))
    ]
    assert not silent, silent


def test_todo_has_an_issue() -> None:
    loose = [
        f"{named(p)}:{number}"
        for p in sources()
        for number, line in enumerate(p.read_text().splitlines(), 1)
        if re.search(r"\b(TODO|FIXME|XXX|HACK)\b(?!\(#\d+\))", line) and p != Path(__file__).resolve()
    ]
    assert not loose, loose


def test_pass_files_hold_one_pass() -> None:
    wrong = []
    for path in sources("passes", endings=(".py",)):
        classes = [
            n.name for n in tree_of(path).body if isinstance(n, ast.ClassDef) and "Pass" in map(ast.unparse, n.bases)
        ]
        wanted = "".join(part.capitalize() for part in path.stem.split("_"))
        if classes not in ([], [wanted]):
            wrong.append(f"{named(path)}: {classes}, expected [{wanted}]")
    assert not wrong, wrong


@pytest.mark.parametrize("spec", pass_names())
def test_pass(spec: str) -> None:
    instance = parse_pass(spec)
    assert isinstance(instance, Pass)
    doc = type(instance).__doc__ or ""
    assert "Before:" in doc and "After:" in doc, f"{spec}: the docstring says neither what comes in nor what goes out"
    assert (ROOT / f"test/passes/{spec}.mlir").is_file(), f"test/passes/{spec}.mlir is missing"


def test_pipeline_is_made_of_passes() -> None:
    from mlc.passes.base import run_pipeline
    from mlc.passes.pipeline import pipeline

    assert callable(run_pipeline)
    for spec in pipeline():
        if not spec.startswith("mlir:"):
            parse_pass(spec)


def rows() -> set[str]:
    """Ops that a row of test/ops names."""
    folder = str(ROOT / "test/ops")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return {
        case.op for path in sorted(Path(folder).glob("cases_*.py")) for case in importlib.import_module(path.stem).CASES
    }


def test_every_op_names_its_source() -> None:
    missing = [f"{d.family}.py: {d.name}" for d in load_ops().values() if "Source:" not in d.doc]
    assert not missing, "\n".join(missing)


def test_every_op_has_a_row() -> None:
    wanted = {d.name for d in load_ops().values() if d.kind != "source" and not d.is_internal}
    assert wanted <= rows(), sorted(wanted - rows())


def _literals(tree: ast.Module) -> Iterator[tuple[int, list[str]]]:
    """Strings of each tuple, list, set and of a dictionary's keys, but for tables from ops to functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict) and all(
            isinstance(v, ast.Name | ast.Attribute | ast.Lambda) for v in node.values
        ):
            continue
        items = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", None)
        if items is not None:
            yield node.lineno, [i.value for i in items if isinstance(i, ast.Constant) and isinstance(i.value, str)]


def test_ops_are_listed_once() -> None:
    """Outside the declarations no literal names many ops: a list that must be kept in step is a defect.

    A dictionary from ops to functions is behaviour, not a list, and importers' tables have foreign keys.
    """
    ops = set(load_ops())
    lists = []
    for path in sources("passes", "targets", "tools", "runtime", endings=(".py",)):
        for line, strings in _literals(tree_of(path)):
            known = {s.removeprefix("mlc.") for s in strings} & ops
            if len(known) > OPS_IN_A_LIST_MAX:
                lists.append(f"{named(path)}:{line} lists {len(known)} ops: {', '.join(sorted(known))}")
    assert not lists, "\n".join(lists)


def test_import_cost() -> None:
    """`import mlc` is for programs that run a model: neither MLIR nor torch nor onnx nor numpy, and no noticeable
    time."""
    script = (
        "import sys, time, json; start = time.perf_counter(); import mlc; took = time.perf_counter() - start;"
        "print(json.dumps([took, sorted({m.split('.')[0] for m in sys.modules})]))"
    )
    runs = [
        json.loads(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout)
        for _ in range(3)
    ]
    loaded = set(runs[0][1]) & {"mlir", "torch", "onnx", "numpy", "ml_dtypes", "typer", "rich"}
    assert not loaded
    assert min(took for took, _ in runs) < 0.1


@pytest.mark.parametrize("ending", ["pt2", "onnx"])
def test_locations_survive_passes(ending: str, tmp_path: Path) -> None:
    """After each pass every mlc op of the digits model says which line of the model it came from."""
    import mlc.demo
    from mlc.targets.machines import find_machine
    from mlc.tools import driver

    source = driver.import_model(Path(next(iter(mlc.demo.__path__))) / f"digits.{ending}")
    driver.compile_module(source.module, find_machine("x86-64-v3"), dump_dir=tmp_path)
    unknown = []
    for dump in sorted(tmp_path.glob("*.mlir")):
        text = dump.read_text()
        aliases = dict(re.findall(r"^(#loc\d*) = (loc\(.*\))$", text, re.MULTILINE))
        for line in text.splitlines():
            found = re.search(r" = \"?mlc\.\w+.* (loc\(.*\))$", line)
            alias = re.fullmatch(r"loc\((#loc\d*)\)", found[1]) if found else None
            if found and "unknown" in (aliases.get(alias[1], "unknown") if alias else found[1]):
                unknown.append(f"{dump.name}: {line.strip()[:100]}")
    assert len(list(tmp_path.glob("*.mlir"))) >= 5
    assert not unknown, "\n".join(unknown)


@pytest.mark.parametrize("tool", [["ruff", "check", "."], ["mypy", *LAYERS, "runtime/mlc"]], ids=["ruff", "mypy"])
def test_tools_find_nothing(tool: list[str]) -> None:
    run = subprocess.run([sys.executable, "-m", *tool], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
