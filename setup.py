"""The build's only code: which folder becomes which package, and the native modules. The rest is in pyproject.toml."""

import os
from glob import glob

from setuptools import Extension, setup

PACKAGES = {
    "lwcc": "core/lwcc",
    "lwcc.launcher": "launcher",
    "lwcc_torch": "lwcc_torch",
    "lwcc_torch.c10d": "lwcc_torch/c10d",
    "lwcc_tf": "lwcc_tf",
    "lwcc_tf.keras": "lwcc_tf/keras",
}

# Not a Python module, but a library of ops that TensorFlow loads; it needs TensorFlow neither to compile nor to link.
tensorflow_ops = Extension(
    "lwcc_tf._tfops",
    sources=sorted(glob("lwcc_tf/_plugin/*.c")),
    depends=sorted(glob("lwcc_tf/_plugin/*.h")),
    include_dirs=["core/include", "lwcc_tf"],
    extra_compile_args=["-std=c11", "-D_GNU_SOURCE", "-O2", "-g0", "-fvisibility=hidden", "-Wall", "-Wextra"]
    + os.environ.get("LWCC_CFLAGS", "").split(),
    libraries=["dl"],
    py_limited_api=True,
)

HEADERS = "lwcc.include.lwcc"  # what `lwcc plugin build` compiles against

setup(
    package_dir={**PACKAGES, HEADERS: "core/include/lwcc"},
    packages=[*PACKAGES, HEADERS],
    package_data={**{name: ["py.typed", "*.pyi"] for name in PACKAGES}, HEADERS: ["*.h"]},
    cffi_modules=["core/build_native.py:ffi"],
    ext_modules=[tensorflow_ops],
    options={"bdist_wheel": {"py_limited_api": "cp39"}},
)
