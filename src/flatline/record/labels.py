"""Names of scalars as people read them: by optimizer only where there are several."""

from __future__ import annotations

from collections.abc import Mapping


def labels_of(optimizers: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """Keys with class and model of each: ``3`` -> ``Adam 2`` where there are several."""
    names, models = ([pair[which] for pair in optimizers.values()] for which in range(2))
    if len(optimizers) < 2:
        return dict.fromkeys(optimizers, "")
    if all(models) and len(set(models)) == len(models):
        return {key: model for key, (_, model) in optimizers.items()}
    counted: dict[str, int] = {}
    labels = {}
    for key, (name, _) in optimizers.items():
        counted[name] = counted.get(name, 0) + 1
        labels[key] = f"{name} {counted[name]}" if names.count(name) > 1 else name
    return labels


def labelled(name: str, labels: Mapping[str, str]) -> str:
    """``loss/#3`` -> ``loss`` if there is one optimizer, else ``loss/Adam 2``."""
    plain, mark, key = name.partition("/#")
    if not mark or name.startswith("logged/"):
        return name
    label = labels.get(key, key)
    return f"{plain}/{label}" if label else plain
