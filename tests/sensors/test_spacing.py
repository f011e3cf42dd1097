import math

import pytest
import torch

from flatline.sensors.spacing import spaced


@pytest.mark.parametrize(
    ("shape", "count"),
    [((16, 64), 32), ((48, 24, 3, 3), 32), ((1024,), 32), ((7,), 32), ((1, 512), 16), ((64, 512), 4096)],
)
def test_elements_come_from_all_columns(shape, count):
    size, inner = math.prod(shape), math.prod(shape[1:])
    stride, number = spaced(torch.empty(shape), count)
    places = range(0, size, stride)
    assert len(places) == number <= count
    assert number >= min(size, count) // 2
    assert len({place % inner for place in places}) == min(number, inner)
