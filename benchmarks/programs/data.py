"""What the programs learn from: small, made here, learnable."""

import torch


def blobs(rows=512, classes=4, features=16, spread=1.0):
    """Gaussian clouds, one for each class, in random order."""
    generator = torch.Generator().manual_seed(0)
    centres = 2.0 * torch.randn(classes, features, generator=generator)
    labels = torch.randint(classes, (rows,), generator=generator)
    return centres[labels] + spread * torch.randn(rows, features, generator=generator), labels


def curve(rows=512, features=8):
    """A smooth function of several numbers, with little noise; [rows], not [rows, 1]."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(rows, features, generator=generator)
    weights = torch.randn(features, generator=generator)
    return inputs, torch.tanh(inputs @ weights) + 0.05 * torch.randn(rows, generator=generator)


def images(rows=256, classes=4, size=8):
    """One bright patch; where it lies is the class."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(classes, (rows,), generator=generator)
    pictures = 0.3 * torch.randn(rows, 1, size, size, generator=generator)
    for row, label in enumerate(labels.tolist()):
        top, left = size // 2 * (label // 2), size // 2 * (label % 2)
        pictures[row, 0, top : top + size // 2, left : left + size // 2] += 1.0
    return pictures, labels


def text(rows=256, length=24, words=32):
    """Each token is a fixed function of the two before it."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, words, (rows, length), generator=generator)
    for place in range(2, length):
        tokens[:, place] = 1 + (3 * tokens[:, place - 1] + 5 * tokens[:, place - 2]) % (words - 1)
    return tokens
