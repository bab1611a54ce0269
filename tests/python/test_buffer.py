from __future__ import annotations

import array
import ctypes
from typing import Any

import numpy as np
import pytest

from lwcc import buffer, dlpack, dtypes


class Interface:
    def __init__(self, a: Any) -> None:
        self.kept = a
        self.__array_interface__ = a.__array_interface__


class DLPack:
    """Gives DLPack alone."""

    def __init__(self, a: Any) -> None:
        self.kept = a

    def __dlpack__(self) -> Any:
        return self.kept.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.kept.__dlpack_device__()


class OnDevice(DLPack):
    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)


@pytest.mark.parametrize("wrap", [lambda a: a, Interface, memoryview, DLPack])
def test_a_view_shares_memory(wrap: Any) -> None:
    a = np.arange(12, dtype=np.float32).reshape(3, 4)
    seen, code = buffer.target(wrap(a))
    seen[1, 2] = -1
    assert a[1, 2] == -1
    assert seen.shape == (3, 4)
    assert code == dtypes.CODES["float32"]


def test_the_buffer_protocol_of_other_modules_is_understood() -> None:
    assert buffer.source(array.array("d", [1, 2]))[1] == dtypes.CODES["float64"]
    assert buffer.source((ctypes.c_int32 * 3)(1, 2, 3))[0].tolist() == [1, 2, 3]
    assert buffer.source(b"ab")[1] == dtypes.CODES["uint8"]


def test_numbers_and_lists_are_inputs_only() -> None:
    assert buffer.source(3.5)[0].shape == ()
    assert buffer.source([[1, 2], [3, 4]])[0].shape == (2, 2)
    with pytest.raises(TypeError, match="gives no access to its memory"):
        buffer.target([1, 2])


def test_an_input_that_is_not_contiguous_is_copied() -> None:
    a = np.arange(12.0).reshape(3, 4)
    seen, _ = buffer.source(a.T)
    assert seen.flags.c_contiguous
    assert np.array_equal(seen, a.T)
    seen[0, 0] = 99
    assert a[0, 0] == 0


def test_an_output_that_is_not_contiguous_is_refused() -> None:
    with pytest.raises(ValueError, match="not C-contiguous"):
        buffer.target(np.zeros((3, 4)).T)


def test_a_read_only_output_is_refused() -> None:
    a = np.zeros(3)
    a.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        buffer.target(a)
    assert buffer.source(a)[0] is a


def test_zero_dimensions_and_zero_elements_are_kept() -> None:
    assert buffer.source(np.array(1.0))[0].shape == ()
    assert buffer.source(np.zeros((0, 3)))[0].shape == (0, 3)
    assert buffer.target(DLPack(np.zeros((0, 3))))[0].shape == (0, 3)


def test_the_address_is_that_of_the_first_element() -> None:
    a = np.zeros(5)
    assert buffer.address(a) == a.ctypes.data
    assert buffer.address(a[2:]) == a.ctypes.data + 16


def test_dlpack_of_a_device_is_refused() -> None:
    with pytest.raises(TypeError, match="not on the CPU"):
        dlpack.to_numpy(OnDevice(np.zeros(3)))


def test_dlpack_keeps_strides_and_its_owner() -> None:
    a = np.arange(6, dtype=np.int16).reshape(2, 3)
    seen = dlpack.to_numpy(DLPack(a.T))
    assert np.array_equal(seen, a.T)
    del a
    assert seen[2, 1] == 5


def test_objects_are_refused() -> None:
    with pytest.raises(TypeError, match="gives no access"):
        buffer.source(object())
    with pytest.raises(TypeError, match="no collective for elements of type"):
        buffer.source(np.zeros(3, np.complex64))
