from __future__ import annotations

import numpy as np
import pytest

from lwcc import dtypes
from lwcc._native import ffi, lib


def test_codes_are_those_of_the_header() -> None:
    numbers = ffi.typeof("lwcc_dtype").relements
    assert {n[5:].lower(): c for n, c in numbers.items() if n != "LWCC_DTYPES"} == dtypes.CODES
    assert len(dtypes.NAMES) == len(dtypes.ITEMSIZE) == lib.LWCC_DTYPES


@pytest.mark.parametrize("name", dtypes.NAMES)
def test_a_dtype_survives_the_round_trip(name: str) -> None:
    code = dtypes.CODES[name]
    kind = dtypes.numpy_dtype(code)
    assert kind.itemsize == dtypes.ITEMSIZE[code]
    assert dtypes.code_of(kind, name) == code


def test_long_long_is_int64() -> None:
    assert dtypes.code_of(np.dtype(np.longlong)) == dtypes.CODES["int64"]


def test_bfloat16_of_ml_dtypes_is_known() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert dtypes.code_of(np.dtype(ml_dtypes.bfloat16)) == dtypes.BFLOAT16


def test_uint16_is_bfloat16_when_said() -> None:
    assert dtypes.code_of(np.dtype(np.uint16), "bfloat16") == dtypes.BFLOAT16


def test_what_is_said_has_to_fit() -> None:
    with pytest.raises(ValueError, match="does not describe"):
        dtypes.code_of(np.dtype(np.float32), "bfloat16")
    with pytest.raises(ValueError, match="unknown"):
        dtypes.code_of(np.dtype(np.float32), "float31")


def test_foreign_byte_order_is_refused() -> None:
    with pytest.raises(TypeError, match="byte order"):
        dtypes.code_of(np.dtype(">f4" if np.little_endian else "<f4"))
