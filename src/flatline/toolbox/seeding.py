"""One seed for everything that draws random numbers."""

from __future__ import annotations

import os
import random
import sys

import torch

HIGHEST = 2**32 - 1  # what NumPy takes


def seed_everything(seed: int, *, strict: bool = False) -> torch.Generator:
    """Seed Python, torch on every device, and NumPy, CuPy and TensorFlow where they are loaded.

    Call it after the imports and before anything random. In a distributed run add the rank to the seed.

    Args:
        seed: 0 to 2**32 - 1.
        strict: deterministic algorithms only, which raise where there is none, and no autotuning of convolutions.
            Sets ``CUBLAS_WORKSPACE_CONFIG``, and ``PYTHONHASHSEED`` for processes that are started later.

    Returns:
        A generator with this seed, for ``DataLoader(generator=…)``, so that its order depends on nothing else.

    Raises:
        ValueError: the seed is out of range.
        RuntimeError: ``strict`` comes too late, as CUDA is running without a workspace setting.

    Source: PyTorch's notes on reproducibility. Bit for bit equality between devices or versions is not to be had.
    """
    if isinstance(seed, bool) or not 0 <= seed <= HIGHEST:
        raise ValueError(f"seed must be a whole number from 0 to {HIGHEST}, not {seed!r}; try seed % 2**32")
    if strict:
        _strict(seed)
    torch.manual_seed(seed)
    _seed_others(seed)
    return torch.Generator().manual_seed(seed)


def worker_init_fn(worker_id: int) -> None:
    """Seed all libraries of a DataLoader worker, each worker and each epoch differently.

    torch does so for Python, NumPy and itself; this one also reaches the other libraries of :func:`seed_everything`.

    Args:
        worker_id: as DataLoader passes it; torch has put it into ``torch.initial_seed()`` already.
    """
    _seed_others(torch.initial_seed() % (HIGHEST + 1))


def _seed_others(seed: int) -> None:
    random.seed(seed)
    for name in ("numpy", "cupy"):
        if name in sys.modules:
            sys.modules[name].random.seed(seed)
    if "tensorflow" in sys.modules:
        sys.modules["tensorflow"].random.set_seed(seed)


def _strict(seed: int) -> None:
    running = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    if running and "CUBLAS_WORKSPACE_CONFIG" not in os.environ:
        raise RuntimeError("strict comes too late for cuBLAS; call seed_everything before the first tensor on the GPU")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    os.environ["PYTHONHASHSEED"] = str(seed)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
