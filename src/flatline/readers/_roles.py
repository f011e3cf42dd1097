"""Which curve is what, guessed from the names. A name with a word in it that is not understood is left alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import get_args

from flatline.events import Role

ROLES: tuple[Role, ...] = tuple(role for role in get_args(Role) if role)
REMEMBERED = 4096  # names whose role was found
SPLIT = re.compile(r"[^a-zA-Z0-9]+|(?<=[a-z])(?=[A-Z][a-z])")
# words that change nothing about what a curve is, those first that make a name the better choice
PLAIN = {
    "step", "epoch", "total", "avg", "average", "mean", "running", "batch", "iter", "metrics", "metric", "main", "model",
    "scalar", "scalars", "logs", "optimizer", "optim", "opt", "trainer", "current", "curr", "overall", "all",
    "smoothed", "smooth", "ema", "rate", "per", "token", "host", "global", "raw", "performance", "flatline", "logged",
}  # fmt: skip
TRAIN = {"train", "training", "tr", "trn"}
VALIDATION = {"val", "valid", "validation", "eval", "evaluation", "test", "dev", "holdout"}
LOSS = {"loss", "losses"}
LOSSES = {"ce", "nll", "mse", "bce", "xent", "mae", "rmse", "cost", "elbo", "crossentropy", "lm", "objective"}
ACCURACY = {"acc", "accuracy", "top1", "acc1", "precision1"}
OPTIMIZERS = {
    "adam", "adamw", "sgd", "lion", "adafactor", "muon", "rmsprop", "adagrad", "lamb", "pg0", "pg1", "group0", "group", "0",
}  # fmt: skip
REWARD = {"reward", "rewards", "return", "returns", "rew", "score", "scores"}
REWARDED = {"ep", "episode", "episodic", "rollout", "rlhf", "env", "charts", *PLAIN, *TRAIN}


def words_of(name: str) -> list[str]:
    """``rollout/ep_rew_mean`` -> rollout, ep, rew, mean."""
    return re.sub(r"\bcross entropy\b", "crossentropy", " ".join(SPLIT.split(name)).lower()).split()


@lru_cache(maxsize=REMEMBERED)
def role_of(name: str) -> Role:
    """What a curve of this name is most likely, or nothing."""
    words = words_of(name)
    said = set(words)
    for judge in (_counted, _rate, _gradient, _scale, _divergence, _reward, _accuracy, _loss):
        if role := judge(words, said):
            return role
    return ""


def _counted(words: Sequence[str], said: set[str]) -> Role:
    return "epoch" if said <= {"epoch", "epochs", *TRAIN, *VALIDATION} and said & {"epoch", "epochs"} else ""


def _rate(words: Sequence[str], said: set[str]) -> Role:
    rest = said - {"lr", "learning", "rate", *PLAIN, *TRAIN, *OPTIMIZERS}
    is_rate = "lr" in said or {"learning", "rate"} <= said or said & {"lrs", "learningrate"}
    return "learning_rate" if is_rate and not rest - {"lrs", "learningrate"} else ""


def _gradient(words: Sequence[str], said: set[str]) -> Role:
    named = bool({"grad", "norm"} <= said or {"gradient", "norm"} <= said or said & {"gradnorm", "gnorm"})
    rest = said - {
        "grad",
        "gradient",
        "gradients",
        "grads",
        "norm",
        "gradnorm",
        "gnorm",
        "2",
        "l2",
        "0",
        *PLAIN,
        *TRAIN,
    }
    return "gradient_norm" if named and not rest else ""


def _scale(words: Sequence[str], said: set[str]) -> Role:
    if said - PLAIN - TRAIN in ({"loss", "scale"}, {"grad", "scale"}, {"scaler", "scale"}, {"amp", "scale"}):
        return "loss_scale"
    return "clip_rate" if {"clip", "rate"} <= said <= {"clip", "rate", "grad", "gradient", *TRAIN} else ""


def _divergence(words: Sequence[str], said: set[str]) -> Role:
    return (
        "kl" if "kl" in said and not said - {"kl", "approx", "objective", "policy", "rollout", *PLAIN, *TRAIN} else ""
    )


def _reward(words: Sequence[str], said: set[str]) -> Role:
    return "reward" if name_is(said, REWARD, REWARDED | {"objective"}) or words == ["r"] else ""


def _accuracy(words: Sequence[str], said: set[str]) -> Role:
    if name_is(said, ACCURACY, PLAIN | TRAIN | {"token"}):
        return "train_accuracy"
    return "val_accuracy" if name_is(said, ACCURACY, PLAIN | VALIDATION | {"token"}) else ""


def _loss(words: Sequence[str], said: set[str]) -> Role:
    if not said & LOSS and not said & (TRAIN | VALIDATION):
        return ""
    if name_is(said, LOSS | LOSSES, PLAIN | TRAIN):
        return "train_loss"
    return "val_loss" if name_is(said, LOSS | LOSSES, PLAIN | VALIDATION) else ""


def name_is(said: set[str], wanted: set[str], allowed: set[str]) -> bool:
    """Whether a name has one of the wanted words, and no word that is not allowed."""
    return bool(said & wanted) and not said - wanted - allowed


# --------------------------------------------------------------------------- all curves of a run


def roles(lengths: Mapping[str, int], chosen: Mapping[str, str] | None = None) -> dict[str, Role]:
    """The role of each curve, each role once: as chosen (role -> name), else the plainest and longest of those that fit."""
    found: dict[str, Role] = {}
    taken = dict(chosen or {})
    for role in ROLES:
        name = taken.get(role) or _best(role, (name for name in lengths if name not in taken.values()), lengths)
        if name in lengths:
            found[name] = role
    return _without_doubtful(found, lengths, taken)


def _best(role: Role, names: Iterable[str], lengths: Mapping[str, int]) -> str:
    fitting = [name for name in names if role_of(name) == role]
    return min(fitting, key=lambda name: _preference(role, name, lengths[name]), default="")


def _preference(role: Role, name: str, length: int) -> tuple[int, int, int, str]:
    """The smaller, the better: a train or validation loss that says so, the KL to the reference, the longer, the plainer name."""
    words = set(words_of(name))
    unsaid = role.startswith("train") and not words & TRAIN
    tested = bool(words & {"test", "approx"}) or "ema" in words or "smoothed" in words
    return int(tested), int(unsaid), -length, name


def _without_doubtful(found: dict[str, Role], lengths: Mapping[str, int], taken: Mapping[str, str]) -> dict[str, Role]:
    """Where a policy is trained for a reward, its loss says nothing; a KL without a policy is a part of another loss."""
    known = set(found.values())
    doubtful: set[Role] = set()
    if "reward" in known:
        doubtful |= {"train_loss", "val_loss"}
    if "reward" not in known and not any("approx" in name.lower() or "objective" in name.lower() for name in lengths):
        doubtful |= {"kl"}
    return {name: role for name, role in found.items() if role not in doubtful or role in taken}
