"""Images and masks that come again: flipped and turned alike, or each on its own."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from watching import seen

from flatline.events import AugmentedApart
from flatline.sensors.augmented_apart import MOVES, Views, _mirrored

DRAW = torch.Generator().manual_seed(0)
SIDES = 16, 24
ITEMS = 24


def pictures(rows, columns):
    """Images of noise, and masks of one box each."""
    images, masks = torch.rand(ITEMS, 3, rows, columns, generator=DRAW), torch.zeros(ITEMS, 1, rows, columns)
    for mask in masks:
        top, left, high, wide = (int(torch.randint(1, rows // 2, (), generator=DRAW)) for _ in range(4))
        mask[:, top : top + high, left : left + wide] = 1
    return images + masks, masks


def flipped(image):
    return image.flip(-1) if torch.rand(()) < 0.5 else image


def turned(image):
    return flipped(image).rot90(int(torch.randint(4, ())), (-2, -1))


def brighter(image):
    return (1 + torch.rand(())) * image + torch.rand(())


def moved(image):
    return image.roll(int(torch.randint(-2, 3, ())), -1)


class Pictures(Dataset):
    """Each way is a function of the image and the mask."""

    def __init__(self, way, pair=None, more=False):
        self.way, self.more = way, more
        self.images, self.masks = pair or pictures(*SIDES)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, at):
        image, mask = self.way(self.images[at], self.masks[at])
        return (image, mask, torch.rand(())) if self.more else (image, mask)


def together(change):
    return lambda image, mask: tuple(change(torch.cat([image, mask])).split([len(image), len(mask)]))


def apart(change):
    return lambda image, mask: (change(image), change(mask))


def shuffling(way, collate=None, **how):
    return DataLoader(Pictures(way, **how), 6, shuffle=True, collate_fn=collate)


def trained(loader, feed=lambda model, image, mask: model(image), channels=3, epochs=6):
    torch.manual_seed(0)
    model = nn.Conv2d(channels, 1, 3, padding=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(epochs):
        for batch in loader:
            image, mask, *_ = batch.values() if isinstance(batch, dict) else batch
            scores = feed(model, image, mask)
            optimizer.zero_grad()
            functional.binary_cross_entropy_with_logits(scores, mask.float().reshape(scores.shape)).backward()
            optimizer.step()


def found(loader, **how):
    return seen(lambda: trained(loader, **how), AugmentedApart)


def flipped_in_collate(items):
    image, mask = (torch.stack(part) for part in zip(*items, strict=True))
    ways = torch.rand(2, len(image), 1, 1, 1) < 0.5
    return {
        "image": torch.where(ways[0], image, image.flip(-1)),
        "mask": torch.where(ways[1], mask, mask.flip(-1)),
    }


def as_bytes(image, mask):
    return (flipped(image) * 127).to(torch.uint8), flipped(mask)[0].long()


SICK = {
    "flips": lambda: found(shuffling(apart(flipped))),
    "turns": lambda: found(shuffling(apart(turned), pair=pictures(16, 16))),
    "the image alone": lambda: found(shuffling(lambda image, mask: (flipped(image), mask))),
    "the mask alone": lambda: found(shuffling(lambda image, mask: (image, flipped(mask)))),
    "brighter besides": lambda: found(shuffling(lambda image, mask: (brighter(flipped(image)), flipped(mask)))),
    "in a collate function, as a dictionary": lambda: found(shuffling(apart(lambda image: image), flipped_in_collate)),
    "bytes, scaled in the loop": lambda: found(
        shuffling(as_bytes), feed=lambda model, image, mask: model(image.float() / 255)
    ),
}


@pytest.mark.parametrize("kind", SICK)
def test_moved_apart(kind):
    (event,) = SICK[kind]()
    assert event.apart >= 4
    assert event.image != event.mask
    assert {event.image, event.mask} <= set(MOVES)
    assert event.where.function == "trained"


def discs():
    """In the middle of the image, of several sizes: a shift may look like a flip."""
    down, across = torch.meshgrid(torch.arange(16) - 7.5, torch.arange(16) - 7.5, indexing="ij")
    radius = torch.linspace(2, 6, ITEMS)[:, None, None, None]
    masks = ((down.square() + across.square()).sqrt() < radius).float()
    return masks * torch.rand(ITEMS, 3, 1, 1, generator=DRAW) + across / 16 + down / 40, masks


def halves():
    """One of two masks, which a flip makes of each other."""
    masks = torch.zeros(ITEMS, 1, 16, 16)
    masks[::2, ..., :8] = 1
    masks[1::2, ..., 8:] = 1
    return torch.rand(ITEMS, 3, 16, 16, generator=DRAW), masks


def two_views(image, mask):
    return flipped(image), flipped(image)[:1]


QUIET = {
    "flipped together": lambda: found(shuffling(together(flipped))),
    "turned together": lambda: found(shuffling(together(turned), pair=pictures(16, 16))),
    "as they are": lambda: found(shuffling(lambda image, mask: (image, mask))),
    "brighter, with noise": lambda: found(
        shuffling(lambda i, m: (brighter(i) + 0.1 * torch.rand_like(i), m), pair=pictures(16, 16))
    ),
    "moved together": lambda: found(shuffling(together(moved), pair=discs())),
    "two views of one image": lambda: found(shuffling(two_views)),
    "what was drawn is told": lambda: found(shuffling(apart(flipped), more=True)),
    "masks that are the same for many": lambda: found(shuffling(apart(flipped), pair=halves())),
    "a mask that is an input": lambda: found(
        shuffling(apart(flipped)),
        feed=lambda model, image, mask: model(torch.cat([image, mask], 1)),
        channels=4,
    ),
    "an image under its mask": lambda: found(
        shuffling(apart(flipped)), feed=lambda model, image, mask: model(image * (1 - mask))
    ),
    "a model of the masks": lambda: found(
        shuffling(apart(flipped), pair=[part[:, :1] for part in pictures(16, 16)]),
        feed=lambda model, image, mask: model(image) + model(mask),
        channels=1,
    ),
    "no second pass": lambda: found(shuffling(apart(flipped)), epochs=1),
}


@pytest.mark.parametrize("kind", QUIET)
def test_near_miss(kind):
    assert QUIET[kind]() == []


def test_nothing_is_kept_for_long():
    views, (image, mask) = Views(), pictures(16, 16)
    for _ in range(60):
        views.add([0, 1], [image, mask], close=False)
    assert views.done
    assert not views._kept


@pytest.mark.parametrize("side", [8, 100, 129, 256, 300, 384, 500, 512, 1000, 1023])
def test_large_images_keep_places_that_mirror(side):
    kept = list(range(side))[_mirrored(side)]
    assert kept == [side - 1 - place for place in reversed(kept)]
    assert 8 <= len(kept) <= 128


# --------------------------------------------------------------------------- one transform, called twice


class Cut:
    """A square window."""

    def __init__(self, side=8):
        self.side, self.window = side, None

    def __call__(self, image):
        top, left = (int(torch.randint(side - self.side + 1, ())) for side in (SIDES[0], SIDES[0]))
        return image[..., top : top + self.side, left : left + self.side]


class Remembering(Cut):
    def __call__(self, image):
        if self.window is None:
            self.window = int(torch.randint(SIDES[0] - 8, ())), int(torch.randint(SIDES[0] - 8, ()))
            return image[..., self.window[0] :, self.window[1] :][..., :8, :8]
        (top, left), self.window = self.window, None
        return image[..., top : top + 8, left : left + 8]


def shaken(image):
    return image.roll(tuple(int(n) for n in torch.randint(-4, 5, (2,))), (-2, -1))


class Cuts(Pictures):
    def __init__(self, cut):
        super().__init__(None)
        self.cut = cut


class Apart(Cuts):
    def __getitem__(self, at):
        image, mask = self.images[at], self.masks[at]
        image, mask = self.cut(image), self.cut(mask)
        return image, mask


class ByFunction(Cuts):
    def __getitem__(self, at):
        return shaken(self.images[at]), shaken(self.masks[at])


class Together(Cuts):
    def __getitem__(self, at):
        both = self.cut(torch.cat([self.images[at], self.masks[at]]))
        return both[:3], both[3:]


class Seeded(Cuts):
    def __getitem__(self, at):
        image, mask, state = self.images[at], self.masks[at], torch.get_rng_state()
        image = self.cut(image)
        torch.set_rng_state(state)
        return image, self.cut(mask)


class ImageAlone(Cuts):
    def __getitem__(self, at):
        return brighter(shaken(self.images[at])), brighter(self.masks[at]).gt(2).float()


def statements(dataset):
    loader = DataLoader(dataset, 4, shuffle=True)

    def again():
        model = nn.Conv2d(3, 1, 3, padding=1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(4):
            for image, mask in loader:
                optimizer.zero_grad()
                functional.binary_cross_entropy_with_logits(model(image), mask).backward()
                optimizer.step()

    return [event.statement for event in seen(again, AugmentedApart)]


@pytest.mark.parametrize(
    ("dataset", "statement"),
    [
        (Apart(Cut()), "self.cut(image), self.cut(mask)"),
        (ByFunction(None), "shaken(self.images[at]), shaken(self.masks[at])"),
    ],
)
def test_one_transform_called_for_each(dataset, statement):
    assert statements(dataset) == [statement]


@pytest.mark.parametrize(
    "dataset",
    [
        Together(Cut()),
        Seeded(Cut()),
        Apart(Remembering()),
        Apart(Cut(16)),
        ImageAlone(None),
        Apart(lambda image: image),
    ],
)
def test_near_miss_drawn_once_or_not_at_all(dataset):
    assert statements(dataset) == []
