"""The length of a DataLoader is asked for only where nothing but counting can happen."""

import torch
from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, Dataset, IterableDataset, Sampler, Subset

from flatline.sensors.lengths import length_of


class Rows(Dataset):
    def __init__(self, count=10):
        self.rows = list(range(count))
        self.asked = 0

    def __getitem__(self, index):
        return torch.tensor([float(self.rows[index])])

    def __len__(self):
        return len(self.rows)


class CountsItsCalls(Rows):
    def __len__(self):
        self.asked += 1
        return len(self.rows)


class Prints(Rows):
    def __len__(self):
        print("asked")
        return len(self.rows)


class Draws(Sampler):
    def __init__(self):
        pass

    def __iter__(self):
        return iter(range(6))

    def __len__(self):
        torch.rand(1)
        return 6


class Rounded(Rows):
    def __len__(self):
        return max(1, int(len(self.rows) // 2))


class Stream(IterableDataset):
    def __iter__(self):
        yield from range(3)


class Unwilling(Stream):
    def __len__(self):
        raise RuntimeError("not known")


def test_length_is_known_where_it_is_only_counted():
    assert length_of(DataLoader(Rows(10), 3)) == 4
    assert length_of(DataLoader(Rows(10), 3, drop_last=True, shuffle=True)) == 3
    assert length_of(DataLoader(Rounded(10), 1)) == 5
    assert length_of(DataLoader(Subset(Rows(10), [1, 2, 3]), 2)) == 2
    assert length_of(DataLoader(ConcatDataset([Rows(4), Rows(5)]), 3)) == 3
    assert length_of(DataLoader(torch.zeros(7, 2), 2)) == 4


def test_near_miss_length_that_does_more(capsys):
    counting = CountsItsCalls()
    assert length_of(DataLoader(counting, 2)) is None
    assert counting.asked == 0
    assert length_of(DataLoader(Prints(), 2)) is None
    before = torch.get_rng_state()
    assert length_of(DataLoader(Rows(), 2, sampler=Draws())) is None
    assert length_of(DataLoader(Rows(), batch_sampler=BatchSampler(Draws(), 2, False))) is None
    assert torch.equal(before, torch.get_rng_state())
    assert capsys.readouterr().out == ""


def test_near_miss_no_length():
    assert length_of(DataLoader(Stream())) is None
    assert length_of(DataLoader(Unwilling())) is None
