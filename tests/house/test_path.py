"""A tensor's path: nine stations, tagged `PATH n/9`, each in the layer where DESIGN has it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
TAG = re.compile(r"PATH (\d)/9")
# station -> where its tag may stand (station 9 is spread over the way back)
STATIONS = {
    1: ("lwcc_torch/hooks.py", "lwcc_tf/"),
    2: ("lwcc_torch/tensor.py", "lwcc_tf/tensor.py"),
    3: ("core/lwcc/ops.py",),
    4: ("core/src/api/",),
    5: ("core/src/coord/",),
    6: ("core/src/coord/fuse",),
    7: ("core/src/exec/", "core/src/coord/lane"),
    8: ("core/src/exec/wire", "core/src/channel/", "core/src/transport/"),
    9: ("core/src/", "lwcc_torch/", "lwcc_tf/"),
}


def tags() -> dict[int, set[str]]:
    found: dict[int, set[str]] = {}
    for folder in ("core", "lwcc_torch", "lwcc_tf"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".c", ".h", ".py"):
                for number in TAG.findall(path.read_text(encoding="utf-8")):
                    found.setdefault(int(number), set()).add(str(path.relative_to(ROOT)))
    return found


def test_all_nine_stations_are_tagged() -> None:
    assert sorted(tags()) == list(range(1, 10))


def test_each_station_stands_in_its_layer() -> None:
    for number, places in tags().items():
        strays = {p for p in places if not p.startswith(STATIONS[number])}
        assert not strays, f"PATH {number}/9 in {sorted(strays)}, expected in {STATIONS[number]}"


def test_stations_on_the_way_out_have_one_place_each() -> None:
    for number in (3, 4, 6):
        assert len(tags().get(number, set())) == 1, f"PATH {number}/9 stands in {tags().get(number)}"
