"""One batch for ever, whatever it is made of."""

from __future__ import annotations

from collections import OrderedDict, UserDict, defaultdict, namedtuple

import pytest
import torch

from flatline.preflight.hearing import Hearing
from flatline.preflight.serving import Repeated, _alike, copied

Pair = namedtuple("Pair", "x y")


class Strict(dict):
    def __init__(self, *, size):
        super().__init__()
        self.size = size


def strict():
    made = Strict(size=3)
    made["x"] = torch.ones(3)
    return made


@pytest.mark.parametrize(
    "value",
    [
        defaultdict(list, x=torch.ones(3)),
        OrderedDict(x=torch.ones(3)),
        UserDict(x=torch.ones(3)),
        Pair(torch.ones(3), torch.Size([3, 4])),
        (torch.Size([3, 4]), [torch.ones(3)]),
        strict(),
        {"x": {"y": [torch.ones(3)]}},
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_copy_is_of_the_same_kind_and_shares_no_tensor(value):
    twin = copied(value)
    assert type(twin) is type(value)
    assert _alike(value, twin) is True
    for tensor in tensors(twin):
        tensor.zero_()
    assert [float(tensor.sum()) for tensor in tensors(value)] == [3.0]


def tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if hasattr(value, "values") else value if isinstance(value, (list, tuple)) else ()
    return [tensor for item in items for tensor in tensors(item)]


def test_sparse_tensors_are_the_same_only_as_one_object():
    matrix = torch.eye(3).to_sparse()
    assert copied(matrix) is matrix
    assert _alike((torch.ones(3), matrix), (torch.ones(3), matrix)) is True
    assert _alike((torch.ones(3), matrix), (torch.ones(3), torch.eye(3).to_sparse())) is None


def repeated():
    """One step was done."""
    made, hearing = Repeated(), Hearing()
    made.attach(hearing, lambda hook, otherwise: hook)
    made.stepped()
    return made, hearing


def test_later_inputs_are_replaced_by_the_first():
    made, hearing = repeated()
    hearing.inputs((torch.ones(3),), {})
    args, _ = hearing.inputs((torch.zeros(3),), {})
    assert args[0].tolist() == [1, 1, 1]
    assert made.changed


def test_the_rest_of_an_epoch_is_told_from_the_batch():
    made, hearing = repeated()
    hearing.inputs((torch.ones(3, 4),), {})
    assert made.stepped()
    hearing.inputs((torch.zeros(3, 4),), {})
    hearing.inputs((torch.zeros(2, 4),), {})  # of two models, say
    assert made.stepped()
    hearing.inputs((torch.zeros(2, 4),), {})
    assert not made.stepped()
    assert made.stepped()  # nothing was called that could be told apart


def test_under_vmap_nothing_is_looked_at():
    _, hearing = repeated()
    hearing.inputs((torch.ones(3),), {})

    def called(x):
        (given,), _ = hearing.inputs((x,), {})
        return given * 2

    assert torch.func.vmap(called)(torch.zeros(2, 3)).sum() == 0
