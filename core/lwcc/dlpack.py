"""DLPack on the CPU, read here because numpy's reader knows no bfloat16 and makes arrays read-only."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from lwcc import dtypes

_CPU = 1
_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 6: "bool"}  # DLDataTypeCode


class _Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("kind", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _View:
    """What numpy asks for memory; holds the capsule, whose end frees the tensor."""

    def __init__(self, capsule: Any, interface: dict[str, Any]) -> None:
        self.capsule = capsule
        self.__array_interface__ = interface


def to_numpy(obj: Any) -> Any:
    """Return a writable numpy array over the memory of a DLPack object; bfloat16 as `dtypes.numpy_dtype` has it.

    Raises:
        TypeError: not on the CPU, or an element type without collectives.
    """
    device = obj.__dlpack_device__()[0]
    if device != _CPU:
        raise TypeError(f"lwcc: the tensor is on a device (DLPack type {int(device)}), not on the CPU; copy it first")
    capsule = obj.__dlpack__()
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    tensor = _Tensor.from_address(get_pointer(capsule, b"dltensor"))
    name = _KINDS.get(tensor.kind, "?") + ("" if tensor.kind == 6 else str(tensor.bits))
    if name not in dtypes.CODES or tensor.lanes != 1:
        raise TypeError(f"lwcc: no collective for DLPack elements of type {name} with {tensor.lanes} lanes")
    itemsize = tensor.bits // 8
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = tuple(tensor.strides[i] * itemsize for i in range(tensor.ndim)) if tensor.strides else None
    raw = np.dtype(np.uint16) if name == "bfloat16" else np.dtype(name)
    if 0 in shape or not tensor.data:
        return np.empty(shape, dtypes.numpy_dtype(dtypes.CODES[name]))
    interface = {
        "version": 3,
        "shape": shape,
        "typestr": raw.str,
        "strides": strides,
        "data": (tensor.data + tensor.byte_offset, False),
    }
    return np.asarray(_View(capsule, interface)).view(dtypes.numpy_dtype(dtypes.CODES[name]))
