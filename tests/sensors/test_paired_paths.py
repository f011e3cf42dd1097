"""Files that stand at one place in two lists, and belong to others."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
from torch.utils.data import Dataset, Subset

from flatline.sensors.paired_paths import mispaired

CASES = range(40)
IMAGES = [Path(f"images/case{k}.npy") for k in CASES]
MASKS = [Path(f"masks/case{k}_mask.npy") for k in CASES]
PADDED = [f"masks/{k:03d}.png" for k in CASES]


class Pairs(Dataset):
    def __init__(self, pairs):
        self.pairs = list(pairs)

    def __getitem__(self, at):
        return self.pairs[at]


class Columns(Dataset):
    def __init__(self, images, masks, more=()):
        self.images, self.masks, self.more = images, masks, list(more)

    def __getitem__(self, index):
        return open(self.images[index]), open(self.masks[index])


class ByName(Dataset):
    """The list of masks is there, and is not asked for the same place."""

    def __init__(self, images, masks):
        self.images, self.masks = images, masks

    def __getitem__(self, index):
        image = self.images[index]
        return open(image), open(self.masks[int(image.stem[4:])])


def shuffled(values, seed=0):
    return random.Random(seed).sample(values, len(values))


def test_two_folders_in_the_order_of_text():
    found = mispaired(Pairs(zip(sorted(IMAGES), sorted(MASKS), strict=True)))
    assert (found.first, found.second) == ("case1.npy", "case10_mask.npy")
    assert (found.apart, found.total) == (33, 40)
    assert Path(found.where.file).name == "test_paired_paths.py"


@pytest.mark.parametrize(
    "dataset",
    [
        Pairs(list(zip(sorted(IMAGES), sorted(MASKS), strict=True))[8:]),
        Pairs(shuffled(list(zip(sorted(IMAGES), sorted(MASKS), strict=True)))),
        Subset(Columns(sorted(map(str, IMAGES)), sorted(map(str, MASKS))), range(9)),
        Columns(sorted(f"{k}.png" for k in CASES), PADDED),
        Columns([f"x/{k}.png" for k in CASES], sorted(f"y/{k}.txt" for k in CASES)),
    ],
    ids=["a part", "shuffled together", "two lists", "one of them padded", "one of them by number"],
)
def test_sorted_apart(dataset):
    assert mispaired(dataset) is not None


@pytest.mark.parametrize(
    "dataset",
    [
        Pairs(zip(IMAGES, MASKS, strict=True)),
        Pairs(zip(IMAGES, shuffled(MASKS), strict=True)),
        Pairs(itertools.pairwise(IMAGES)),
        Pairs((f"left_{k}.png", f"flow_{k + 1}.png") for k in CASES),
        Pairs((f"rgb_{k:04d}.png", f"depth_{k + k // 7:04d}.png") for k in CASES),
        Pairs(zip(sorted(IMAGES)[:7], sorted(MASKS)[:7], strict=True)),
        Pairs((f"{a}.png", f"b{a}_{k}.png") for k, a in enumerate("abcdefghijkl")),
        Columns(PADDED, [f"labels/{k:03d}.txt" for k in CASES]),
        Columns(sorted(PADDED), sorted(PADDED), more=sorted(map(str, IMAGES))),
        ByName(sorted(IMAGES), MASKS),
        ["a.png"] * 9,
        None,
    ],
    ids=["by number", "drawn partners", "frames", "the next one", "dropped frames", "few", "letters", "padded", "another list", "by name",
         "a list", "nothing"],
)  # fmt: skip
def test_near_miss_paired_paths(dataset):
    assert mispaired(dataset if dataset is None or isinstance(dataset, Dataset) else Pairs(dataset)) is None
