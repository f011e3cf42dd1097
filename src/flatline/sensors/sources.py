"""Looks into the user's source for the statement behind a fact. Read only when something is already wrong."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from functools import lru_cache

from flatline.events import Where

SEVERING = (
    "item",
    "detach",
    "numpy",
    "tolist",
    "argmax",
    "round",
    "int",
    "long",
    "bool",
    "data",
    "sign",
    "floor",
    "ceil",
)
REBUILDING = ("tensor", "as_tensor", "from_numpy", "Tensor", "FloatTensor", "Variable")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LOOPS = (ast.For, ast.While, ast.AsyncFor)
FILES = 24  # whose trees are kept
REACH = 40  # lines above the backward that are looked at


def tree_of(file: str) -> ast.Module | None:
    """The syntax tree of a file of the user's, which nobody may change; None if it cannot be parsed."""
    return _tree("".join(linecache.getlines(file)))


def called_name(call: ast.Call) -> str:
    """The last part of the name of what is called; '' where it has none."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def option_names(call: ast.Call) -> list[str]:
    """The names that an option of a command line may have in the code: ``n_layers`` of ``add_argument("--n-layers")``."""
    return [str(a.value).lstrip("-").replace("-", "_") for a in call.args if isinstance(a, ast.Constant)]


def value_pairs(target: ast.expr, value: ast.expr | None) -> list[tuple[ast.expr, ast.expr | None]]:
    """``a, b = 1, 2`` is two assignments."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        return list(zip(target.elts, value.elts, strict=True))
    return [(target, value)]


def parameter_names(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> list[str]:
    """Of those that may be given by place, in order."""
    return [each.arg for each in (*function.args.posonlyargs, *function.args.args)]


def given_names(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """The same as a caller counts them: without ``self``."""
    names = parameter_names(function)
    return names[1:] if names[:1] == ["self"] else names


def own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a scope without those of functions in it."""
    for child in ast.iter_child_nodes(scope):
        if not isinstance(child, FUNCTIONS):
            yield child
            yield from own_nodes(child)


@lru_cache(maxsize=FILES)
def _tree(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None


def function_around(file: str, line: int) -> ast.AST | None:
    """The innermost function around a line, or the module."""
    best: ast.AST | None = tree_of(file)
    if best is None:
        return None
    for node in ast.walk(best):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if node.lineno <= line <= (node.end_lineno or node.lineno) and node.lineno >= getattr(best, "lineno", 0):
                best = node
    return best


def backward_name(scope: ast.AST, line: int) -> str:
    """``total`` of ``total.backward()`` at a line."""
    for node in ast.walk(scope):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "backward":
            if node.lineno <= line <= (node.end_lineno or node.lineno):
                names = [n.id for n in ast.walk(node) if isinstance(n, ast.Name)]
                return names[-1] if names else ""
    return ""


def severing_call(where: Where | None) -> tuple[str, Where | None]:
    """The call that cuts the loss of the backward at ``where`` from its graph, if it stands in the same function."""
    scope = function_around(where.file, where.line) if where else None
    if scope is None or where is None:
        return "", None
    candidates = [hit for hit in _severing(scope) if where.line - REACH <= hit[0] <= where.line]
    name = backward_name(scope, where.line)
    named = [hit for hit in candidates if name and hit[2] == name]
    for line, text, _ in reversed(named or candidates):
        return text, Where(where.file, line, where.function)
    return "", None


def _severing(scope: ast.AST) -> Iterator[tuple[int, str, str]]:
    """(line, text of the call, name it is assigned to), in order."""
    hits = []
    for node in ast.walk(scope):
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            name = target.id if isinstance(target, ast.Name) else ""
            hits += [(node.lineno, text, name) for text in _cuts(node.value)]
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            hits += [(node.lineno, text, "") for item in node.items for text in _no_grad(item.context_expr)]
    return iter(sorted(hits))


def _cuts(value: ast.AST) -> Iterator[str]:
    for node in ast.walk(value):
        if isinstance(node, ast.Attribute) and node.attr in SEVERING:
            yield f".{node.attr}()" if node.attr != "data" else ".data"
        elif isinstance(node, ast.Call):
            called = called_name(node)
            if called in REBUILDING:
                yield f"{ast.unparse(node.func)}(…)"
            elif called in ("float", "int") and isinstance(node.func, ast.Name):
                yield f"{called}(…)"


def _no_grad(expression: ast.AST) -> Iterator[str]:
    text = ast.unparse(expression)
    if any(word in text for word in ("no_grad", "inference_mode", "set_grad_enabled(False)")):
        yield f"with {text}"


def keeping_statement(where: Where | None) -> tuple[str, Where | None]:
    """The statement that keeps the loss: ``losses.append(loss)`` or ``total += loss``."""
    scope = function_around(where.file, where.line) if where else None
    if scope is None or where is None:
        return "", None
    name = backward_name(scope, where.line)
    for node in ast.walk(scope):
        kept = _kept(node, name)
        if kept is not None and isinstance(node, ast.stmt):
            return ast.unparse(node), Where(where.file, node.lineno, where.function)
    return "", None


def _kept(node: ast.AST, name: str) -> ast.AST | None:
    """The expression that holds on to ``name``, unless ``.item()`` or the like stands around it."""
    held: ast.AST | None = None
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        held = node.value
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and node.value.args:
        function = node.value.func
        held = node.value.args[0] if isinstance(function, ast.Attribute) and function.attr == "append" else None
    elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
        held = node.value
    if held is None or not name or list(_cuts(held)):
        return None
    return held if any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(held)) else None
