"""Every tests/c/test_*.c is a pytest item per mode (plain, asan, tsan); the core is compiled once per mode.

Objects go to build/c/<mode>/, and are made again when their source, any header or the flags changed.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
COMMON = ["-std=c11", "-D_GNU_SOURCE", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]
INCLUDE = ["-Icore/include", "-Icore/src", "-Itests/c"]
MODES = {
    "plain": ["-O2"],
    "asan": ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"],
    "tsan": ["-O1", "-fsanitize=thread"],
}
DEADLINE_S = 300  # of one test program; sanitizers are slow on a busy machine
COMPILER = os.environ.get("CC", "gcc")
WHEEL = importlib.util.find_spec("libucx")  # UCX as a wheel: a library to load, and headers to compare with
UCX = Path(WHEEL.origin).parent if WHEEL is not None and WHEEL.origin else None
_archives: dict[tuple[str, str], Path] = {}


class BuildFailed(Exception):
    """The compiler's words."""


def compile_one(source: Path, target: Path, command: list[str]) -> None:
    """Run the compiler for one output, unless the output is newer than the source and all headers."""
    target.parent.mkdir(parents=True, exist_ok=True)
    stamp = target.with_name(target.name + ".cmd")
    text = " ".join(command)
    newest = max(p.stat().st_mtime for p in [source, *headers()])
    if target.exists() and target.stat().st_mtime > newest and stamp.exists() and stamp.read_text() == text:
        return
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        raise BuildFailed(f"{text}\n{made.stdout}{made.stderr}")
    stamp.write_text(text)


def headers() -> list[Path]:
    return [*(ROOT / "core").rglob("*.h"), *(ROOT / "tests").rglob("*.h")]


def core_archive(mode: str, compiler: str = COMPILER, flags: tuple[str, ...] = (), bare: tuple[str, ...] = ()) -> Path:
    """Return the archive of the whole core in a mode, made where out of date; files named in `bare` without flags."""
    if (mode, compiler) in _archives:
        return _archives[mode, compiler]
    folder = ROOT / "build" / "c" / (mode if compiler == COMPILER else f"{mode}-{compiler}")
    gen = folder / "gen"
    gen.mkdir(parents=True, exist_ok=True)
    if (ROOT / "core/gen_tables.py").exists():
        subprocess.run([sys.executable, ROOT / "core/gen_tables.py", gen], check=True, cwd=ROOT)
    sources = sorted([*(ROOT / "core/src").rglob("*.c"), *gen.glob("*.c")])
    objects = [folder / "obj" / (str(s.relative_to(ROOT)).replace("/", "_")[:-2] + ".o") for s in sources]

    def build(pair: tuple[Path, Path]) -> None:
        source, target = pair
        options = [*COMMON, *(() if source.name in bare else flags or MODES[mode]), *INCLUDE]
        compile_one(source, target, [compiler, *options, "-c", "-o", str(target), str(source)])

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(build, zip(sources, objects)))
    archive = folder / "libcore.a"
    if not archive.exists() or archive.stat().st_mtime < max(o.stat().st_mtime for o in objects):
        archive.unlink(missing_ok=True)
        subprocess.run(["ar", "rcs", archive, *objects], check=True)
    _archives[mode, compiler] = archive
    return archive


class CItem(pytest.Item):
    """One C test program in one mode."""

    def __init__(self, *, source: Path, mode: str, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.source, self.mode = source, mode
        self.add_marker(mode)

    def runtest(self) -> None:
        archive = core_archive(self.mode)
        program = archive.parent / self.source.stem
        headers = ["-isystem", str(UCX / "include")] if UCX is not None else []
        command = [COMPILER, *COMMON, *MODES[self.mode], *INCLUDE, *headers]
        command += ["-o", str(program), str(self.source), str(archive)]
        if program.exists() and archive.stat().st_mtime > program.stat().st_mtime:
            program.unlink()
        compile_one(self.source, program, [*command, "-pthread", "-ldl", "-lm"])
        env = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1", "ASAN_OPTIONS": "detect_leaks=1"}
        if UCX is not None:
            env.setdefault("LWCC_UCX_LIB", str(UCX / "lib" / "libucp.so.0"))
        env.setdefault("UCX_MEM_EVENTS", "no")  # it would patch functions of libc that the sanitizers have replaced
        done = subprocess.run(
            [program], cwd=archive.parent, env=env, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
        if done.returncode != 0:
            raise BuildFailed(f"{program.name} ({self.mode}) ended with {done.returncode}\n{done.stdout}{done.stderr}")

    def repr_failure(self, excinfo: Any, style: Any = None) -> Any:
        if isinstance(excinfo.value, BuildFailed):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.source, None, f"{self.source.stem}[{self.mode}]"


class CFile(pytest.File):
    """A tests/c/test_*.c."""

    def collect(self) -> Iterator[CItem]:
        for mode in MODES:
            yield CItem.from_parent(self, name=f"{self.path.stem}[{mode}]", source=self.path, mode=mode)


def pytest_collect_file(parent: Any, file_path: Path) -> Any:
    if file_path.suffix == ".c" and file_path.name.startswith("test_") and shutil.which(COMPILER):
        return CFile.from_parent(parent, path=file_path)
    return None
