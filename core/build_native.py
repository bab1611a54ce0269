"""Build of the native module `lwcc._native`: the public header's marked region is the cdef, the sources are globbed.

setuptools loads this file (setup.py: cffi_modules) and takes `ffi`. A new source, algorithm or transport needs no
entry anywhere. Set LWCC_CFLAGS to add compiler flags (for a sanitizer or -O0).
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from glob import glob
from typing import Any

import cffi

CORE = os.path.relpath(os.path.dirname(os.path.abspath(__file__)))
GENERATED = os.path.join("build", "native", "gen")
FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-O3", "-g0", "-fvisibility=hidden", "-Wall", "-Wextra", "-pthread"]


def cdef() -> str:
    """Return the region of the public header that is plain C without macros."""
    with open(os.path.join(CORE, "include", "lwcc", "lwcc.h"), encoding="utf-8") as header:
        return header.read().split("/* cdef: begin */")[1].split("/* cdef: end */")[0]


def generated_sources() -> "list[str]":
    """Write the tables that come from file names (core/gen_tables.py) and return the files."""
    script = os.path.join(CORE, "gen_tables.py")
    if not os.path.exists(script):
        return []
    os.makedirs(GENERATED, exist_ok=True)
    subprocess.run([sys.executable, script, GENERATED], check=True)
    return sorted(glob(os.path.join(GENERATED, "*.c")))


def compile_side_by_side() -> None:
    """Let distutils' compiler build as many objects at a time as there are cores; it would build one by one."""
    from distutils.ccompiler import CCompiler

    def compile_all(self: Any, sources: Any, output_dir: Any = None, macros: Any = None, include_dirs: Any = None,
                    debug: Any = 0, extra_preargs: Any = None, extra_postargs: Any = None,
                    depends: Any = None) -> Any:  # fmt: skip
        macros, objects, post, pre, build = self._setup_compile(
            output_dir, macros, include_dirs, sources, depends, extra_postargs
        )
        cc_args = self._get_cc_args(pre, debug, extra_preargs)

        def one(obj: str) -> None:
            if obj in build:
                src, ext = build[obj]
                self._compile(obj, src, ext, cc_args, post, pre)

        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            list(pool.map(one, objects))
        return objects

    CCompiler.compile = compile_all


compile_side_by_side()
ffi = cffi.FFI()
ffi.cdef(cdef())
ffi.set_source(
    "lwcc._native",
    '#include "lwcc/lwcc.h"',
    sources=sorted(glob(os.path.join(CORE, "src", "**", "*.c"), recursive=True)) + generated_sources(),
    depends=sorted(glob(os.path.join(CORE, "**", "*.h"), recursive=True)),
    include_dirs=[os.path.join(CORE, "include"), os.path.join(CORE, "src")],
    extra_compile_args=[*FLAGS, "-DPy_LIMITED_API=0x03090000", *os.environ.get("LWCC_CFLAGS", "").split()],
    extra_link_args=["-pthread", *os.environ.get("LWCC_CFLAGS", "").split()],
    libraries=["dl", "m"],
    py_limited_api=True,
)
