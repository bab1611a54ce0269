"""Code of authors: modules by path or by name, and what their failures say: file, line and cause, no traceback."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from types import ModuleType
from typing import Optional

_files: dict[str, ModuleType] = {}  # path: its module
_HERE = os.path.dirname(os.path.abspath(__file__))


def module_of(where: str) -> ModuleType:
    """Return the module "path/to/file.py" or "package.module"; a file is run once. If it is the script that runs as
    `__main__`, that is the module. Its neighbours can be imported by their plain names.

    Raises:
        ValueError: there is none, or its code failed; the text has file, line and cause.
    """
    if not where.endswith(".py"):
        try:
            return importlib.import_module(where)
        except Exception as error:
            raise ValueError(f"lwcc: cannot import {where!r}: {cause(error, '')}") from error
    path = os.path.realpath(where)
    if path not in _files:
        if not os.path.isfile(path):
            raise ValueError(f"lwcc: there is no file {where}")
        _files[path] = _running(path) or _run(path, where)
    return _files[path]


def _running(path: str) -> Optional[ModuleType]:
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    return main if file and os.path.realpath(file) == path else None


def _run(path: str, where: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"lwcc_algorithms_{len(_files)}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses, pickle and typing look there
    if os.path.dirname(path) not in sys.path:
        sys.path.append(os.path.dirname(path))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[spec.name]
        raise ValueError(f"lwcc: cannot load {where}: {cause(error, path)}{_advice(error)}") from error
    return module


def _advice(error: BaseException) -> str:
    if isinstance(error, ImportError) and "relative import" in str(error):
        return "\n  a file given by its path has no package: import by the plain name, or say package.module:NAME"
    return ""


def cause(error: BaseException, file: str) -> str:
    """Return what went wrong in an author's code, with the innermost line of `file`, else of what is not LWCC's."""
    text = f"{type(error).__name__}: {error}".removesuffix(": ")
    if isinstance(error, SyntaxError) and error.filename:
        line = (error.text or "").strip()
        return f"{type(error).__name__}: {error.msg}\n  at {error.filename}:{error.lineno}: {line}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if os.path.realpath(frame.filename) == file]
    others = [frame for frame in frames if not frame.filename.startswith((_HERE, "<"))]
    if not own and (not others or not file):
        return text
    last = (own or others)[-1]
    return f"{text}\n  at {last.filename}:{last.lineno}: {last.line}"
