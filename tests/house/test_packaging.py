"""What is installed: one small abi3 wheel, no sources in it, nothing called core or launcher, an import that does
nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
WHEEL_LIMIT = 2 * 1024 * 1024
PACKAGES = {"lwcc", "lwcc_torch", "lwcc_tf"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel made from this tree; objects of earlier builds in build/ are used again, packages are not."""
    pytest.importorskip("setuptools", minversion="77")
    out = tmp_path_factory.mktemp("wheel")
    for stale in [*ROOT.glob("build/lib*"), *ROOT.glob("build/bdist*")]:
        shutil.rmtree(stale)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(out),
        str(ROOT),
    ]
    made = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    (found,) = out.glob("*.whl")
    return found


def names(wheel: Path) -> list[str]:
    return zipfile.ZipFile(wheel).namelist()


def test_the_wheel_is_one_small_abi3_file(wheel: Path) -> None:
    assert "-cp39-abi3-" in wheel.name
    assert wheel.stat().st_size < WHEEL_LIMIT


def test_the_wheel_holds_no_sources_but_the_public_headers_and_no_build_scripts(wheel: Path) -> None:
    allowed = (".py", ".pyi", ".so", "py.typed")
    headers = {"lwcc/include/lwcc/lwcc.h", "lwcc/include/lwcc/plan.h"}
    assert headers <= set(names(wheel))
    inside = [n for n in names(wheel) if ".dist-info/" not in n and n not in headers]
    assert inside
    assert not [n for n in inside if not n.endswith(allowed)]
    assert not [n for n in inside if "build_native" in n or "gen_tables" in n or n.startswith(("tests", "examples"))]


def test_the_wheel_holds_our_packages_alone(wheel: Path) -> None:
    top = {n.split("/")[0] for n in names(wheel) if ".dist-info/" not in n}
    assert {"lwcc"} <= top <= PACKAGES
    inside = names(wheel)
    for needed in ("lwcc/_native.abi3.so", "lwcc/py.typed", "lwcc/launcher/__init__.py", "lwcc/launcher/store.py"):
        assert needed in inside
    for needed in ("lwcc_tf/_tfops.abi3.so", "lwcc_tf/ops.py", "lwcc_tf/keras/optimizer.py", "lwcc_tf/py.typed"):
        assert needed in inside


def test_the_library_of_ops_needs_neither_tensorflow_nor_the_core_to_be_linked(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extract("lwcc_tf/_tfops.abi3.so", tmp_path)
    command = ["nm", "-D", str(tmp_path / "lwcc_tf/_tfops.abi3.so")]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    symbols = [line.split()[-1] for line in listed.splitlines() if line.strip()]
    assert symbols
    assert not [s for s in symbols if s.startswith(("TF_", "lwcc_", "Py", "_Z"))]


def test_the_wheel_has_its_commands(wheel: Path) -> None:
    (entry,) = [n for n in names(wheel) if n.endswith("entry_points.txt")]
    text = zipfile.ZipFile(wheel).read(entry).decode()
    assert "lwccrun = lwcc.launcher:main" in text
    assert "lwcc = lwcc.__main__:main" in text


def test_the_built_module_exports_only_its_init(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extract("lwcc/_native.abi3.so", tmp_path)
    command = ["nm", "-D", "--defined-only", str(tmp_path / "lwcc/_native.abi3.so")]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    exported = {line.split()[-1] for line in listed.splitlines() if line.strip()}
    strays = {n for n in exported if not n.startswith(("lwcc_", "PyInit_", "_cffi_pypyinit", "_init", "_fini"))}
    assert not strays


def in_empty_folder(code: str, tmp_path: Path) -> str:
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_core_and_launcher_cannot_be_imported(tmp_path: Path) -> None:
    code = "import importlib.util as u, json; print(json.dumps([u.find_spec(n) is None for n in ('core', 'launcher')]))"
    assert json.loads(in_empty_folder(code, tmp_path)) == [True, True]


@pytest.mark.parametrize("module", ["lwcc", "lwcc.launcher", "lwcc.launcher.store", "lwcc.errors"])
def test_import_does_nothing(module: str, tmp_path: Path) -> None:
    code = f"""
import json, os, sys, threading
read = []
class Watched(type(os.environ)):
    def __getitem__(self, key):
        read.append(key)
        return super().__getitem__(key)
os.environ.__class__ = Watched
files = len(os.listdir("/proc/self/fd"))
import {module}
heavy = sorted({{"numpy", "torch", "tensorflow", "lwcc._native", "cffi"}} & set(sys.modules))
tasks = len(os.listdir("/proc/self/task"))
after = len(os.listdir("/proc/self/fd"))
print(json.dumps([heavy, tasks, after - files, [k for k in read if not k.startswith("PYTHON")]]))
"""
    heavy, tasks, descriptors, read = json.loads(in_empty_folder(code, tmp_path))
    assert (heavy, tasks, descriptors, read) == ([], 1, 0, [])


def test_every_public_name_exists(tmp_path: Path) -> None:
    code = "import lwcc\nfor n in lwcc.__all__:\n    getattr(lwcc, n)\nprint(len(lwcc.__all__))"
    assert int(in_empty_folder(code, tmp_path)) > 40


def test_the_typed_names_are_the_loaded_names() -> None:
    import ast

    import lwcc

    tree = ast.parse((ROOT / "core/lwcc/__init__.py").read_text(encoding="utf-8"))
    typed = {alias.asname for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert typed - {None} == set(lwcc.__all__)
