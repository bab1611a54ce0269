"""The build's only code: which folder becomes which package, and the native module. The rest is in pyproject.toml."""

import os

from setuptools import setup

PACKAGES = {
    "lwcc": "core/lwcc",
    "lwcc.launcher": "launcher",
    "lwcc_torch": "lwcc_torch",
    "lwcc_torch.c10d": "lwcc_torch/c10d",
    "lwcc_tf": "lwcc_tf",
}
PRESENT = {name: folder for name, folder in PACKAGES.items() if os.path.exists(os.path.join(folder, "__init__.py"))}

HEADERS = "lwcc.include.lwcc"  # what `lwcc plugin build` compiles against

setup(
    package_dir={**PRESENT, HEADERS: "core/include/lwcc"},
    packages=[*PRESENT, HEADERS],
    package_data={**{name: ["py.typed", "*.pyi"] for name in PRESENT}, HEADERS: ["*.h"]},
    cffi_modules=["core/build_native.py:ffi"],
    options={"bdist_wheel": {"py_limited_api": "cp39"}},
)
