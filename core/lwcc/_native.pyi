"""Typed face of the built module. The C signatures are in core/include/lwcc/lwcc.h."""

from typing import Any

ffi: Any
lib: Any
