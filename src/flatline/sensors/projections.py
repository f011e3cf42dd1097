"""Random features that a module draws anew in every forward pass: what the layers above them learn is worth nothing in the next."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from flatline.events import Where
from flatline.sensors.sources import called_name

DRAWS = ("randn", "rand", "normal")
WAVES = ("cos", "sin")
PRODUCTS = ("matmul", "mm", "einsum", "linear", "addmm")
KEPT = ("manual_seed", "register_buffer", "fork_rng")  # the same numbers each time, or not at every call


def drawn_in_forward(function: ast.FunctionDef, file: str) -> tuple[Where, str] | None:
    """The statement that draws a matrix of a fixed size, which the input is multiplied by before a cosine or a sine."""
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    trains = any(isinstance(node, ast.Attribute) and node.attr == "training" for node in ast.walk(function))
    if trains or any(called_name(call) in KEPT for call in calls) or not any(map(_is_wave, calls)):
        return None
    bound = {each.arg for each in function.args.args[1:]} | {
        inner.id for inner in ast.walk(function) if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)
    }
    for node in (
        each for each in function.body if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name)
    ):
        name = ast.unparse(node.targets[0])
        if _draws(node.value, bound) and _alone(function, name) and _reaches_wave(function, name):
            return Where(file, node.lineno, "forward"), ast.unparse(node)
    return None


def _draws(value: ast.expr, bound: set[str]) -> bool:
    """``torch.randn(self.n, self.m)``, scaled or moved: of no size that the input has, and from no generator of its own."""
    calls = [node for node in ast.walk(value) if isinstance(node, ast.Call) and called_name(node) in DRAWS]
    if len(calls) != 1 or any(key.arg == "generator" for key in calls[0].keywords):
        return False
    args = calls[0].args
    sizes = args[0].elts if len(args) == 1 and isinstance(args[0], ast.Tuple) else args
    return len(sizes) > 1 and all(_names(each).isdisjoint(bound) for each in sizes)


def _reaches_wave(function: ast.FunctionDef, name: str) -> bool:
    """A product with it goes into a cosine or a sine, straight or under a name."""
    carried = {
        ast.unparse(n.targets[0])
        for n in ast.walk(function)
        if isinstance(n, ast.Assign) and any(_products(n.value, name))
    }
    waves = [node for node in ast.walk(function) if isinstance(node, ast.Call) and _is_wave(node)]
    return any(any(_products(wave, name)) or _names(wave) & carried for wave in waves)


def _alone(function: ast.FunctionDef, name: str) -> bool:
    """One input is multiplied by it: of two, products are taken that estimate a kernel, and new numbers are right there."""
    return len({ast.unparse(each) for each in _products(function, name)}) == 1


def _is_wave(call: ast.Call) -> bool:
    return called_name(call) in WAVES


def _products(node: ast.AST, name: str) -> Iterator[ast.expr]:
    """``x @ name``, ``torch.matmul(x, name)`` somewhere in it."""
    for inner in ast.walk(node):
        matrix = isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.MatMult)
        called = isinstance(inner, ast.Call) and called_name(inner) in PRODUCTS
        if isinstance(inner, ast.expr) and (matrix or called) and name in _names(inner):
            yield inner


def _names(node: ast.AST) -> set[str]:
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
