"""Loading what fits."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flatline.toolbox import load_matching_state_dict


def model(classes=3):
    return nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, classes))


def test_all_fits_like_load_state_dict():
    source, target, plain = model(), model(), model()
    result = load_matching_state_dict(target, source.state_dict())
    plain.load_state_dict(source.state_dict())
    assert result.complete
    assert all(
        torch.equal(a, b) for a, b in zip(target.state_dict().values(), plain.state_dict().values(), strict=True)
    )
    assert str(result) == "9 loaded"


def test_a_head_of_another_size_is_skipped_where_torch_raises():
    source, target = model(classes=1000), model()
    head = target[2].weight.clone()
    with pytest.raises(RuntimeError, match="size mismatch"):
        target.load_state_dict(source.state_dict(), strict=False)
    result = load_matching_state_dict(target, source.state_dict())
    assert result.mismatched == {"2.weight": ((1000, 4), (3, 4)), "2.bias": ((1000,), (3,))}
    assert torch.equal(target[2].weight, head)
    assert torch.equal(target[0].weight, source[0].weight)
    assert "2 other shape: 2.weight [1000, 4] for [3, 4]" in str(result)


def test_missing_and_unexpected_are_told():
    given = model().state_dict() | {"old.weight": torch.ones(1)}
    del given["1.running_mean"]
    result = load_matching_state_dict(model(), given)
    assert (result.missing, result.unexpected, result.complete) == (("1.running_mean",), ("old.weight",), False)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod.", "model."])
def test_prefixes_of_wrappers_come_off(prefix):
    source, target = model(), model()
    result = load_matching_state_dict(target, {prefix + name: value for name, value in source.state_dict().items()})
    assert (result.stripped, result.complete) == (prefix, True)
    assert torch.equal(target[0].weight, source[0].weight)


def test_near_miss_a_model_whose_own_names_begin_so():
    source = nn.ModuleDict({"module": nn.Linear(2, 2)})
    target = nn.ModuleDict({"module": nn.Linear(2, 2)})
    result = load_matching_state_dict(target, source.state_dict())
    assert (result.stripped, result.complete) == ("", True)


def test_near_miss_other_dtypes_are_converted():
    target = model().half()
    assert load_matching_state_dict(target, model().double().state_dict()).complete
    assert target[0].weight.dtype == torch.float16


def test_a_whole_checkpoint_is_refused():
    with pytest.raises(ValueError, match=r"perhaps one of \['net'\]"):
        load_matching_state_dict(model(), {"net": model().state_dict(), "epoch": 3})


def test_nothing_fits():
    with pytest.raises(ValueError, match="rename the keys"):
        load_matching_state_dict(model(), {"a": torch.ones(1)})
