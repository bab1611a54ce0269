"""Includes point downwards: DESIGN's layers, read from the #include lines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
CORE = ROOT / "core"
# layer -> the layers whose headers it may include, besides its own and lwcc/lwcc.h
MAY = {
    "os": set(),
    "transport": {"os"},
    "channel": {"transport", "os"},
    "plan": {"os"},
    "algo": set(),
    "exec": {"channel", "transport", "plan", "os"},
    "coord": {"exec", "channel", "transport", "plan", "os"},
    "api": {"coord", "exec", "channel", "transport", "plan", "os"},
}
ONLY = {("plan", "os"): {"os/status.h", "os/mem.h"}}  # plan is pure: no clock, thread or file of os
PURE_SYSTEM = {"math.h", "stdarg.h", "stdbool.h", "stddef.h", "stdint.h", "stdio.h", "stdlib.h", "string.h", "limits.h"}
INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^">]+)[">]', re.MULTILINE)


def sources() -> list[Path]:
    return sorted(p for p in (CORE / "src").rglob("*.[ch]"))


def includes(path: Path) -> list[tuple[bool, str]]:
    return [(quote == "<", name) for quote, name in INCLUDE.findall(path.read_text(encoding="utf-8"))]


def complaint(path: Path, layer: str, system: bool, name: str) -> str:
    """Return what is wrong with one include line, or ''."""
    where = path.relative_to(ROOT)
    if system:
        pure = layer in ("plan", "algo") and name not in PURE_SYSTEM
        return f"{where} is pure, but includes <{name}>" if pure else ""
    if layer == "algo":
        return "" if name == "lwcc/plan.h" else f"{where}: an algorithm includes lwcc/plan.h alone, not {name}"
    if name in ("lwcc/lwcc.h", "lwcc/plan.h") or ("/" not in name and (path.parent / name).exists()):
        return ""
    target = name.split("/")[0]
    if target == layer:
        return ""
    if target not in MAY[layer]:
        return f"{where}: layer {layer} may not include {name}"
    only = ONLY.get((layer, target))
    return "" if only is None or name in only else f"{where}: {layer} may include only {sorted(only)} of {target}"


def test_every_folder_of_the_core_is_a_known_layer() -> None:
    assert {p.name for p in (CORE / "src").iterdir() if p.is_dir()} <= set(MAY)


def test_includes_point_downwards() -> None:
    files = sources()
    assert files
    found = []
    for path in files:
        layer = path.relative_to(CORE / "src").parts[0]
        found += [complaint(path, layer, system, name) for system, name in includes(path)]
    assert not [text for text in found if text]


@pytest.mark.parametrize(
    ("layer", "system", "name"),
    [("os", False, "channel/channel.h"), ("plan", True, "pthread.h"), ("plan", False, "os/clock.h"),
     ("algo", False, "plan/ir.h"), ("exec", False, "coord/loop.h")],
)  # fmt: skip
def test_an_include_upwards_is_noticed(layer: str, system: bool, name: str) -> None:
    assert complaint(CORE / "src" / layer / "x.c", layer, system, name)


def test_the_launcher_imports_neither_the_native_module_nor_numpy_nor_a_framework() -> None:
    bad = re.compile(r"^\s*(?:import|from)\s+(numpy|torch|tensorflow|cffi|lwcc\._native|lwcc\.(?:ops|context))\b", re.M)
    files = sorted((ROOT / "launcher").rglob("*.py"))
    assert files
    assert not [str(p) for p in files if bad.search(p.read_text(encoding="utf-8"))]


def test_the_adapters_reach_the_core_through_the_python_package() -> None:
    native = re.compile(r"lwcc\._native|\bcffi\b|ctypes")
    files = [p for folder in ("lwcc_torch", "lwcc_tf") for p in (ROOT / folder).rglob("*.py")]
    assert not [str(p) for p in files if native.search(p.read_text(encoding="utf-8"))]


def test_the_tensorflow_plugin_includes_its_own_headers_and_the_public_one() -> None:
    files = sorted((ROOT / "lwcc_tf" / "_plugin").glob("*.[ch]"))
    assert files
    quoted = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.M)
    names = {name for path in files for name in quoted.findall(path.read_text(encoding="utf-8"))}
    assert {n for n in names if not n.startswith("_plugin/")} == {"lwcc/lwcc.h"}
