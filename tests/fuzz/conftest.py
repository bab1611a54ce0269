"""Every tests/fuzz/fuzz_*.c is a short run under ASan and UBSan: clang's fuzzer where its runtime is present, else
driver.c. Seeds are the files of tests/fuzz/seeds/<name>/; fuzz_<name>.options holds flags of the fuzzer's own."""

from __future__ import annotations

import configparser
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
RUNS, SEED = 8000, 20240229
KERNELS = ("reduce_avx2.c", "reduce_avx512.c", "reduce_base.c")  # reached by no target; slow to instrument
SECONDS = int(os.environ.get("LWCC_FUZZ_SECONDS", "0"))  # of each target; 0: a short run of RUNS inputs
_spec = importlib.util.spec_from_file_location("c_conftest", HERE.parent / "c" / "conftest.py")
assert _spec is not None and _spec.loader is not None
c = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(c)


@lru_cache
def has_fuzzer() -> bool:
    """Tell whether clang can link its fuzzer."""
    if not shutil.which("clang"):
        return False
    program = "int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n) { return d && n ? 0 : 0; }"
    out = ROOT / "build" / "c" / "has_fuzzer"
    out.parent.mkdir(parents=True, exist_ok=True)
    command = ["clang", "-fsanitize=fuzzer,address", "-x", "c", "-", "-o", str(out)]
    return subprocess.run(command, input=program, text=True, capture_output=True, check=False).returncode == 0


def own_flags(source: Path) -> list[str]:
    """Return what the target's .options file asks of the fuzzer."""
    options = configparser.ConfigParser()
    options.read(source.with_suffix(".options"))
    return [f"-{k}={v}" for k, v in options["libfuzzer"].items()] if "libfuzzer" in options else []


class FuzzItem(pytest.Item):
    """One fuzz target."""

    def __init__(self, *, source: Path, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.source = source

    def runtest(self) -> None:
        seeds = sorted((HERE / "seeds" / self.source.stem.replace("fuzz_", "", 1)).glob("*"))
        if has_fuzzer():
            flags = ("-O1", "-fsanitize=fuzzer-no-link,address,undefined", "-fno-sanitize-recover=all")
            archive = c.core_archive("fuzz", "clang", flags, KERNELS)
            program = archive.parent / self.source.stem
            link = ["clang", "-O1", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all"]
            limit = f"-max_total_time={SECONDS}" if SECONDS else f"-runs={RUNS}"
            extra, sources = [limit, f"-seed={SEED}", *own_flags(self.source)], [str(self.source)]
            arguments = [*extra, *map(str, seeds)]
            if seeds:
                work = archive.parent / f"{self.source.stem}-corpus"
                work.mkdir(exist_ok=True)
                arguments = [*extra, str(work), str(seeds[0].parent)]
        else:
            archive = c.core_archive("asan")
            program = archive.parent / self.source.stem
            link = [c.COMPILER, *c.MODES["asan"]]
            sources = [str(self.source), str(HERE / "driver.c")]
            arguments = [str(max(RUNS, 20000 * SECONDS)), str(SEED), *map(str, seeds)]
        command = [*link, *c.COMMON, *c.INCLUDE, "-o", str(program), *sources, str(archive), "-ldl", "-lm"]
        made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if made.returncode != 0:
            raise c.BuildFailed(" ".join(command) + "\n" + made.stderr)
        done = subprocess.run(
            [program, *arguments],
            cwd=archive.parent,
            capture_output=True,
            text=True,
            timeout=120 + 4 * SECONDS,
            check=False,
        )
        if done.returncode != 0:
            raise c.BuildFailed(f"{self.name}: seed {SEED}, exit {done.returncode}\n{done.stdout}{done.stderr[-8000:]}")

    def repr_failure(self, excinfo: Any, style: Any = None) -> Any:
        if isinstance(excinfo.value, c.BuildFailed):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.source, None, self.source.stem


class FuzzFile(pytest.File):
    """A tests/fuzz/fuzz_*.c."""

    def collect(self) -> Iterator[FuzzItem]:
        yield FuzzItem.from_parent(self, name=self.path.stem, source=self.path)


def pytest_collect_file(parent: Any, file_path: Path) -> Any:
    if file_path.suffix == ".c" and file_path.name.startswith("fuzz_"):
        return FuzzFile.from_parent(parent, path=file_path)
    return None
