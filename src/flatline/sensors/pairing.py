"""Do labels belong to their inputs? A small probe on samples of both, and the statement that tore them apart."""

from __future__ import annotations

import ast
import math
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from flatline.events import Where
from flatline.sensors.sameness import Sameness
from flatline.sensors.seeds import SEEDING
from flatline.sensors.sources import FUNCTIONS, LOOPS, called_name, own_nodes, tree_of

Tensor = torch.Tensor
ROWS = 2_048  # samples kept, at most
FEATURES = 32  # numbers kept of each
IDS = (torch.int64, torch.int32)
BUCKETS = 256  # in which the ids of a text are counted: words that tell a class seldom share one
TOLD_APART = 4_096  # numbers by which one sample is told from another
NEIGHBOURS = 5
SCATTER, SCATTERED = 37, 101  # scatter rows over two halves
ENOUGH_ROWS = 150
ENOUGH_STEPS = 25
ENOUGH_MEASURED = 300  # rows of a regression
COLUMNS = 32  # of targets that are looked at: a horizon of a day has 24
RIDGE = 0.03  # of the number of rows
RECENT = 8  # close steps
LEARNED = 0.85  # of the labels' entropy: a loss below says that the inputs tell the labels
CHANCE = 0.96
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)
MASKS = ("isnan", "isfinite", "isna", "notna", "isnull", "notnull", "logical_not", "logical_and", "logical_or", "isin")
SORTING = ("sort", "sorted", "unique", "msort", "flip", "flipud", "reversed")  # the same rows, in another order
DROPPING = ("dropna", "drop_duplicates")
PASSING = {
    "arange", "array", "as_tensor", "asarray", "astype", "cat", "clone", "concatenate", "contiguous", "copy", "cpu", "cuda",
    "detach", "enumerate", "float", "from_numpy", "half", "index_select", "len", "list", "long", "max", "mean", "min", "numel",
    "numpy", "print", "range", "reshape", "save", "shape", "size", "split", "squeeze", "stack", "std", "tensor", "to",
    "tolist", "tuple", "type", "unsqueeze", "var", "view", "zip",
}  # fmt: skip
ZIPPING = ("zip", "TensorDataset")
PUT_BACK = (*SEEDING, "set_state", "setstate", "set_rng_state", "deepcopy", "copy")
OWN = "\N{MIDDLE DOT}"  # marks a comprehension's variable


class Pairing:
    """Inputs and labels of one loss, kept while the model does not tell one from the other."""

    def __init__(self, fed_by: str = "linear") -> None:
        self.fed_by = fed_by
        self.probe = Probe()
        self.counts: Counter[int] = Counter()
        self.learned = False
        self.repaired = False  # other pairings were tried
        self.told = False  # that its samples are alike
        self._surprises: deque[float] = deque(maxlen=RECENT)

    def add(self, step: int, inputs: Tensor, labels: Tensor, surprise: float) -> None:
        """One batch, and how much its labels surprised the model."""
        if self.learned or self.probe.foreign(inputs):
            return
        self.counts.update(labels.tolist())
        self.probe.add(inputs, labels)
        if step > RECENT:
            self._surprises.append(surprise)
        if len(self._surprises) >= 3 and self.surprise < LEARNED * self.entropy:
            self.learned, self.probe = True, Probe()

    @property
    def surprise(self) -> float:
        """Mean over the last close steps."""
        return sum(self._surprises) / max(1, len(self._surprises))

    @property
    def entropy(self) -> float:
        """Of the labels, in nats."""
        total = sum(self.counts.values())
        return -math.fsum(n / total * math.log(n / total) for n in self.counts.values())

    def guesses(self, step: int) -> bool:
        """The model still only knows how frequent the labels are."""
        late = step >= ENOUGH_STEPS and len(self._surprises) >= 3
        return not self.learned and late and len(self.counts) > 1 and self.surprise >= CHANCE * self.entropy

    def at_chance(self, step: int) -> bool:
        """The same of a linear layer, and enough was seen."""
        return self.fed_by == "linear" and self.probe.rows >= ENOUGH_ROWS and self.guesses(step)


class Measured:
    """Inputs and measured targets of a regression, kept while the model explains nothing of them."""

    def __init__(self, fed_by: str = "linear") -> None:
        self.fed_by = fed_by
        self.probe = Probe()
        self.learned = False
        self.repaired = False  # other pairings were tried
        self.told = False  # that its samples are alike
        self._errors: deque[tuple[float, float]] = deque(maxlen=RECENT)  # variance of what is left, and of the targets

    def add(self, step: int, inputs: Tensor, scores: Tensor, targets: Tensor) -> None:
        """One batch, and what the model made of it."""
        if self.learned or self.probe.foreign(inputs):
            return
        truth = targets.detach().float().reshape(len(targets), -1)
        self.probe.add(inputs, truth)
        if step > RECENT:
            left = scores.detach().float().reshape(truth.shape) - truth
            both = torch.stack([(values - values.mean(0)).square().sum() for values in (left, truth)])
            self._errors.append((float(both[0]), float(both[1])))
        if len(self._errors) >= 3 and not self.unexplained >= LEARNED:
            self.learned, self.probe = True, Probe()

    @property
    def unexplained(self) -> float:
        """Share of the targets' variance in the last close steps; above 1 where the model only adds to it."""
        return sum(left for left, _ in self._errors) / (sum(whole for _, whole in self._errors) or math.nan)

    def guesses(self, step: int) -> bool:
        """The model explains nothing."""
        late = step >= ENOUGH_STEPS and len(self._errors) >= 3
        return not self.learned and late and self.unexplained >= CHANCE

    def at_chance(self, step: int) -> bool:
        """The same of a linear layer, and enough was seen."""
        return self.fed_by == "linear" and self.probe.rows >= ENOUGH_MEASURED and self.guesses(step)


class Probe:
    """Samples of inputs and labels, and how well simple rules tell one from the other."""

    def __init__(self) -> None:
        self.rows = 0
        self._inputs: list[Tensor] = []
        self._labels: list[Tensor] = []
        self._known: set[float] = set()
        self._shape: tuple[int, ...] | None = None
        self.sameness = Sameness()

    def foreign(self, inputs: Tensor) -> bool:
        """Of another shape than those kept: of another model, or not of one size; texts may be of any length."""
        shape = () if are_ids(inputs) else tuple(inputs.shape[1:])
        self._shape = shape if self._shape is None else self._shape
        return shape != self._shape

    def add(self, inputs: Tensor, labels: Tensor) -> None:
        """One batch; samples that were there before are left out."""
        flat, spread = inputs.detach().reshape(inputs.shape[0], -1), features(inputs)
        width = flat.shape[1]
        keys = _keys(flat.cpu() if width <= TOLD_APART else spread)
        self.sameness.add(flat, keys, labels.detach().cpu())
        new = [at for at, key in enumerate(keys) if key not in self._known and key - key == 0.0][: ROWS - self.rows]
        self._known.update(keys[at] for at in new)
        if new:
            self.rows += len(new)
            self._inputs.append(spread[new])
            self._labels.append(labels.detach().cpu()[new])

    def accuracy(self) -> tuple[float, float, float]:
        """Shares right on samples not learned from: nearest class mean, nearest neighbours, the commonest class."""
        inputs, labels = torch.cat(self._inputs), torch.cat(self._labels).long()
        inputs = (inputs - inputs.mean(0)) / inputs.std(0).clamp(min=1e-12)
        even = torch.arange(len(labels)) % 2 == 0
        halves = [(even, ~even), (~even, even)]
        linear = sum(_class_means(inputs[a], labels[a], inputs[b], labels[b]) for a, b in halves)
        near = sum(_neighbours(inputs[a], labels[a], inputs[b], labels[b]) for a, b in halves)
        common = int(torch.bincount(labels).max())
        return linear / len(labels), near / len(labels), common / len(labels)

    def told(self) -> tuple[float, float]:
        """The better of two rules, and the share of the commonest class; a correlation, and 0, in a regression."""
        if self.rows < ENOUGH_ROWS:
            return 0.0, 1.0
        if self._labels[0].dim() > 1:
            return max(self.correlations()), 0.0
        by_means, by_neighbours, commonest = self.accuracy()
        return max(by_means, by_neighbours), commonest

    def correlations(self) -> tuple[float, float]:
        """Of measured targets with what the other half foretells: by a linear fit, by the nearest neighbours."""
        inputs, targets = torch.cat(self._inputs), torch.cat(self._labels).float()
        inputs = (inputs - inputs.mean(0)) / inputs.std(0).clamp(min=1e-12)
        targets = (targets - targets.mean(0)) / targets.std(0).clamp(min=1e-12)
        even = torch.arange(len(targets)) % 2 == 0
        halves = [(even, ~even), (~even, even)]
        linear = [_alike(_linear(inputs[a], targets[a], inputs[b]), targets[b]) for a, b in halves]
        near = [_alike(_near(inputs[a], targets[a], inputs[b]), targets[b]) for a, b in halves]
        return sum(linear) / 2, sum(near) / 2


def are_ids(inputs: Tensor) -> bool:
    """Rows of whole numbers, as an embedding takes them."""
    return inputs.dim() == 2 and inputs.dtype in IDS


def features(inputs: Tensor) -> Tensor:
    """Some numbers of each row, and how often it holds each id."""
    flat = inputs.detach().reshape(inputs.shape[0], -1)
    if are_ids(inputs):
        places = torch.linspace(0, flat.shape[1] - 1, FEATURES).long()
        return torch.cat([flat.cpu()[:, places].float(), _counts(flat.cpu())], 1)
    return flat[:, :: -(-flat.shape[1] // FEATURES)].float().cpu()


def _counts(ids: Tensor) -> Tensor:
    """How often each id is in a row, some of them in one bucket."""
    return torch.zeros(len(ids), BUCKETS).scatter_add_(1, ids.long() % BUCKETS, torch.ones(ids.shape))


def _keys(rows: Tensor) -> list[float]:
    """One number for each row; rows of zeros and ones have others, too, where they differ in two places."""
    found: list[float] = (rows.double() * torch.sin(1.7 * torch.arange(1, rows.shape[1] + 1))).sum(1).tolist()
    return found


def told_by_means(inputs: Tensor, labels: Tensor) -> float:
    """Share that the nearest class mean tells, of each half by the other."""
    halves = _halves(inputs, labels)
    return sum(_class_means(*one, *other) for one, other in (halves, halves[::-1])) / len(labels)


def told_by_line(inputs: Tensor, targets: Tensor) -> float:
    """Correlation of measured targets with a linear fit to the other half."""
    halves = _halves(inputs, (targets[:, None] - targets.mean()) / targets.std().clamp(min=1e-12))
    told = [_alike(_linear(*one, other[0]), other[1]) for one, other in (halves, halves[::-1])]
    return sum(told) / 2


def _halves(inputs: Tensor, labels: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Scattered over all rows, as neighbours, or every second one, may belong together."""
    inputs = (inputs - inputs.mean(0)) / inputs.std(0).clamp(min=1e-12)
    one = torch.arange(len(labels)) * SCATTER % SCATTERED < SCATTERED // 2
    return (inputs[one], labels[one]), (inputs[~one], labels[~one])


def _linear(inputs: Tensor, targets: Tensor, others: Tensor) -> Tensor:
    """Ridge regression."""
    inside = inputs.mT @ inputs + RIDGE * len(inputs) * torch.eye(inputs.shape[1])
    weights: Tensor = torch.linalg.solve(inside, inputs.mT @ targets)
    return others @ weights


def _near(inputs: Tensor, targets: Tensor, others: Tensor) -> Tensor:
    nearest = torch.cdist(others, inputs).topk(min(NEIGHBOURS, len(inputs)), largest=False).indices
    return targets[nearest].mean(1)


def _alike(one: Tensor, other: Tensor) -> float:
    """Correlation over all rows and columns."""
    one, other = one - one.mean(0), other - other.mean(0)
    return float((one * other).sum() / (one.norm() * other.norm()).clamp(min=1e-12))


def _class_means(inputs: Tensor, labels: Tensor, others: Tensor, truth: Tensor) -> int:
    classes = torch.unique(labels)
    means = torch.stack([inputs[labels == c].mean(0) for c in classes])
    return int((classes[torch.cdist(others, means).argmin(1)] == truth).sum())


def _neighbours(inputs: Tensor, labels: Tensor, others: Tensor, truth: Tensor) -> int:
    nearest = torch.cdist(others, inputs).topk(min(NEIGHBOURS, len(inputs)), largest=False).indices
    return int((labels[nearest].mode(1).values == truth).sum())


# --------------------------------------------------------------------------- the statement that tore them apart


@dataclass(slots=True)
class Permutation:
    """A random order that the code made, and the arrays that it was put to."""

    node: ast.expr
    arrays: set[str]
    escaped: bool = False  # it is used in a way that is not understood


def lone_permutation(file: str, before: int = 0) -> tuple[str, Where | None]:
    """The statement that moves the rows of one array alone: into a random order, or up, where another's were filtered out.

    '' if there is none.

    ``before`` is the line of the loss: what stands below it, and in no loop with it, has not run.
    """
    tree = tree_of(file)
    if tree is None:
        return "", None
    _own_names(tree)
    for scope in (node for node in ast.walk(tree) if isinstance(node, (ast.Module, *FUNCTIONS))):
        found = (*_permuted(scope, tree), *_shuffled(scope), *_drawn_apart(scope), *_cut_off(scope))
        moved = [node for node in found if not _told_by(scope, node)]
        for node in (*moved, *_sorted_apart(scope, tree), *_taken_apart(scope)):
            if _to_come(scope, node, before):
                continue
            return _written(node).replace(OWN, ""), Where(file, node.lineno, getattr(scope, "name", "<module>"))
    return "", None


def _written(node: ast.expr) -> str:
    """As people write it: without parentheses around a generator that is the one argument."""
    args = node.args if isinstance(node, ast.Call) else []
    text = ast.unparse(node)
    return text.replace("((", "(", 1)[:-1] if len(args) == 1 and isinstance(args[0], ast.GeneratorExp) else text


def _own_names(tree: ast.Module) -> None:
    """Variables of comprehensions are theirs alone: ``[x[i] for i in a]`` beside ``[y[i] for i in b]`` has two of them."""
    for at, node in enumerate([n for n in ast.walk(tree) if isinstance(n, COMPREHENSIONS)]):
        bound = {n.id for g in node.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)}
        outside = set(ast.walk(node.generators[0].iter))  # is worked out before any of them is bound
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and inner.id in bound and inner not in outside:
                inner.id += OWN * (at + 1)


def _permuted(scope: ast.AST, tree: ast.Module) -> Iterator[ast.expr]:
    """``y[torch.randperm(n)]``, or ``y[order]`` where ``order`` is a permutation that nothing else is indexed with."""
    nodes = list(own_nodes(scope))
    for node in nodes:
        if isinstance(node, ast.Subscript) and any(_makes_order(inner) for inner in ast.walk(_rows(node))):
            if not _is_of_indices(node, nodes):
                yield node
        elif isinstance(node, ast.Assign) and _makes_order(_bare(node.value)):
            name = ast.unparse(node.targets[0])
            found = _uses(name, list(ast.walk(tree)) if "." in name else _until_made_anew(node, scope, nodes))
            alone = found is not None and (len(found.arrays) == 1 or _leaves_a_column(found.arrays, nodes))
            if found is not None and alone and not found.escaped and _goes_with_another(found, node, nodes):
                yield found.node


def _is_of_indices(part: ast.Subscript, nodes: list[ast.AST]) -> bool:
    """``train[torch.randperm(len(train))]``, where that, or a part of it, is what other arrays are indexed with."""
    names = {ast.unparse(part.value)}
    for node in nodes:
        if isinstance(node, ast.Assign) and (_bare(node.value) is part or _is_part(node.value, names)):
            names.add(ast.unparse(node.targets[0]))
        elif isinstance(node, (ast.For, ast.comprehension)) and _is_part(node.iter, names):
            names.add(ast.unparse(node.target))
    return any(isinstance(node, ast.Subscript) and _mentions(node.slice, names) and node is not part for node in nodes)


def _until_made_anew(made: ast.Assign, scope: ast.AST, nodes: list[ast.AST]) -> list[ast.AST]:
    """The nodes between an assignment and the next of the same name, where both are statements of the scope itself."""
    body = getattr(scope, "body", [])
    name = ast.unparse(made.targets[0])
    again = [each for each in body if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == name]
    if made not in again or len(again) < 2:
        return nodes
    end = min((each.lineno for each in again if each.lineno > made.lineno), default=math.inf)
    return [node for node in nodes if made.lineno <= getattr(node, "lineno", made.lineno) < end]


def _goes_with_another(found: Permutation, made: ast.Assign, nodes: list[ast.AST]) -> bool:
    """Where its name is made anew: the same rows of another array, and not of this one, are taken by the new one."""
    name = ast.unparse(made.targets[0])
    again = [n for n in nodes if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == name]
    if len(again) < 2 or not isinstance(found.node, ast.Subscript):
        return True
    rows = ast.unparse(found.node.slice)
    taken = {
        ast.unparse(n.value)
        for n in nodes
        if isinstance(n, ast.Subscript)
        and ast.unparse(n.slice) == rows
        and n.lineno > max(found.node.lineno, made.lineno)
    }
    return bool(taken - found.arrays) and not taken & found.arrays


def _sorted_apart(scope: ast.AST, tree: ast.Module) -> Iterator[ast.expr]:
    """``[images[k] for k in sorted(images)]`` beside ``[labels[k] for k in labels]``: one list by name, the other as it came."""
    assigned = [n for n in own_nodes(scope) if isinstance(n, ast.Assign)]
    sources = {ast.unparse(n.targets[0]): source for n in assigned if (source := _listed(n.value)) is not None}
    by_name = {k for k, each in sources.items() if isinstance(each, ast.Call) and called_name(each) == "sorted"}
    name = next(iter(by_name), "")
    if len(by_name) == 1 and any(_used_together(tree, name, other) for other in sources.keys() - by_name):
        if not _told_by(scope, sources[name]):
            yield sources[name]
    else:
        given = {arg.arg for arg in scope.args.args} if isinstance(scope, FUNCTIONS) else set()
        yield from _sorted_beside_a_list(assigned, given, tree)
        yield from _sorted_and_returned(scope, assigned, given)


def _sorted_beside_a_list(assigned: list[ast.Assign], given: set[str], tree: ast.Module) -> Iterator[ast.expr]:
    """``names = sorted(files)`` and ``labels = [... for line in lines]``, of which one index takes an element each, or zip.

    Or ``self.labels = labels``, as they were ``given`` to the function.
    """
    files = _only_sorted(assigned)
    if files is None:
        return
    source = ast.unparse(files.value.args[0])  # type: ignore[attr-defined]
    names = _read_in_order(ast.unparse(files.targets[0]), assigned)
    for other in (n for n in assigned if isinstance(n.value, ast.ListComp) or ast.unparse(n.value) in given):
        words = {ast.unparse(inner) for inner in ast.walk(other.value)}
        label = ast.unparse(other.targets[0])
        if words & {source, *names}:
            continue
        if any(_indexed_alike(tree, each, label) or _zipped(tree, each, label) for each in names):
            yield files.value
            return


def _sorted_and_returned(scope: ast.AST, assigned: list[ast.Assign], given: set[str]) -> Iterator[ast.expr]:
    """``files = sorted(os.listdir(folder))``, read one by one, and ``return images, labels`` with labels that were ``given``."""
    files = _only_sorted(assigned)
    if files is None or not any(isinstance(inner, ast.Call) and _of_folder(inner) for inner in ast.walk(files.value)):
        return
    names = set(_read_in_order(ast.unparse(files.targets[0]), assigned))
    folder = {inner.id for inner in ast.walk(files.value) if isinstance(inner, ast.Name)}
    for node in own_nodes(scope):
        sides = node.value.elts if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple) else []
        read = [each for each in sides if _mentions(each, names)]
        others = [each for each in sides if _mentions(each, given - folder - names) and each not in read]
        if read and others and not any(_mentions(n.value, names) for n in assigned if _assigns(n, others)):
            yield files.value
            return


def _taken_apart(scope: ast.AST) -> Iterator[ast.expr]:
    """``labels[np.sort(keep)]`` beside ``clips[keep]``: the rows of two arrays, by the same indices in two orders."""
    nodes = list(own_nodes(scope))
    resorted = {ast.unparse(n.targets[0]): n.value for n in nodes if isinstance(n, ast.Assign) and _resorts(n.value)}
    plain: dict[str, set[str]] = {}
    moved: list[tuple[str, str, ast.expr]] = []  # indices, array, and what takes it
    inner = {id(n.value) for n in nodes if isinstance(n, ast.Subscript)}  # a second index may put the rows back
    for array, index, node in (taken for n in nodes if id(n) not in inner for taken in _takes_rows(n)):
        held = _resorts(resorted.get(ast.unparse(index), index))
        if held:
            moved.append((held, array, node))
        else:
            plain.setdefault(ast.unparse(_bare(index)), set()).add(array)
    for indices, array, node in moved:
        others = plain.get(indices, set())
        if (
            len(others) == 1
            and array not in others
            and not others & {name for held, name, _ in moved if held == indices}
        ):
            yield node


def _takes_rows(node: ast.AST) -> Iterator[tuple[str, ast.expr, ast.expr]]:
    """The array, the indices and the node of ``x[indices]``, ``[x[i] for i in indices]``."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and not isinstance(node.slice, ast.Slice):
        yield ast.unparse(node.value), node.slice, node
    elif isinstance(node, (ast.ListComp, ast.GeneratorExp)) and len(node.generators) == 1:
        loop, taken = node.generators[0], node.elt
        if isinstance(taken, ast.Subscript) and ast.unparse(taken.slice) == ast.unparse(loop.target) and not loop.ifs:
            yield ast.unparse(taken.value), loop.iter, node


def _resorts(index: ast.expr) -> str:
    """The indices that ``np.sort(keep)``, ``sorted(keep)``, ``keep.sort().values``, ``keep[::-1]`` put into another order."""
    while isinstance(index, ast.Attribute) and index.attr in ("values", "tolist"):
        index = index.value
    if isinstance(index, ast.Subscript):
        if ast.unparse(index.slice) == "::-1":
            return ast.unparse(index.value)
        index = index.value  # torch.sort(keep)[0]
    if not isinstance(index, ast.Call) or called_name(index) not in SORTING:
        return ""
    if index.args and not isinstance(index.args[0], ast.Constant):
        return ast.unparse(_bare(index.args[0]))
    return ast.unparse(index.func.value) if isinstance(index.func, ast.Attribute) else ""


def _only_sorted(assigned: list[ast.Assign]) -> ast.Assign | None:
    """``names = sorted(files)``, without a key, where nothing else is sorted."""
    ordered = [n for n in assigned if isinstance(n.value, ast.Call) and ast.unparse(n.value.func) == "sorted"]
    call = ordered[0].value if len(ordered) == 1 else None
    return ordered[0] if isinstance(call, ast.Call) and len(call.args) == 1 and not call.keywords else None


def _assigns(made: ast.Assign, values: list[ast.expr]) -> bool:
    """It makes a name that one of the values is made from."""
    return any(_mentions(each, {ast.unparse(made.targets[0])}) for each in values)


def _read_in_order(name: str, assigned: list[ast.Assign]) -> list[str]:
    """The list itself, and what is read file by file: ``x = torch.stack([torch.load(f) for f in files])``."""
    names = [name]
    for node in assigned:
        sources = {ast.unparse(n.generators[0].iter) for n in ast.walk(node.value) if isinstance(n, COMPREHENSIONS)}
        if sources & set(names):
            names.append(ast.unparse(node.targets[0]))
    return names


def _indexed_alike(tree: ast.Module, one: str, other: str) -> bool:
    """``one[i]`` and ``other[i]`` in one function."""
    for scope in (n for n in ast.walk(tree) if isinstance(n, FUNCTIONS)):
        taken = [n for n in ast.walk(scope) if isinstance(n, ast.Subscript) and isinstance(n.slice, ast.Name)]
        places = {name: {ast.unparse(n.slice) for n in taken if ast.unparse(n.value) == name} for name in (one, other)}
        if places[one] & places[other]:
            return True
    return False


def _zipped(tree: ast.Module, one: str, other: str) -> bool:
    """``zip(one, other)``, ``TensorDataset(one, other)``."""
    pairs = [n.args for n in ast.walk(tree) if isinstance(n, ast.Call) and called_name(n) in ZIPPING]
    sides = [
        ({each for each in args if _mentions(each, {one})}, {each for each in args if _mentions(each, {other})})
        for args in pairs
    ]
    return any(first and second and first != second for first, second in sides)


def _used_together(tree: ast.Module, one: str, other: str) -> bool:
    """As ``zip(a, b)`` or ``a[i], b[i]``: in one call, or one tuple."""
    pairs = [n for n in ast.walk(tree) if isinstance(n, (ast.Tuple, ast.Call))]
    return any(_mentions(pair, {one}) and _mentions(pair, {other}) for pair in pairs)


def _listed(value: ast.expr) -> ast.expr | None:
    """What a list goes through: the keys of a table that it looks up one by one, or the names in a folder."""
    while (
        isinstance(value, ast.Call) and called_name(value) in PASSING and len(value.args) == 1 and not _of_folder(value)
    ):
        value = value.args[0]  # torch.tensor([...]), np.stack([...])
    if isinstance(value, ast.ListComp) and len(value.generators) == 1:
        source, target = value.generators[0].iter, ast.unparse(value.generators[0].target)
        looked_up = isinstance(value.elt, ast.Subscript) and ast.unparse(value.elt.slice) == target
        named = looked_up and not (isinstance(source, ast.Call) and called_name(source) in ("range", "enumerate"))
        return source if named or _of_folder(source) else None
    return value if _of_folder(value) else None


def _of_folder(value: ast.expr) -> bool:
    while isinstance(value, ast.Call) and called_name(value) in ("sorted", "list") and value.args:
        value = value.args[0]
    return isinstance(value, ast.Call) and called_name(value) in ("listdir", "glob", "iglob", "iterdir", "rglob")


def _leaves_a_column(arrays: set[str], nodes: list[ast.AST]) -> bool:
    """All are columns of one table, ``t["x"]`` and ``t["id"]``, of which another, ``t["y"]``, is read and keeps its order."""
    columns = [n for n in nodes if isinstance(n, ast.Subscript) and isinstance(n.slice, ast.Constant)]
    tables = {ast.unparse(n.value) for n in columns if ast.unparse(n) in arrays}
    known = {ast.unparse(n) for n in columns if isinstance(n.slice, ast.Constant) and isinstance(n.slice.value, str)}
    others = {
        ast.unparse(n) for n in columns if ast.unparse(n.value) in tables and isinstance(n.ctx, ast.Load)
    } - arrays
    return arrays <= known and len(tables) == 1 and bool(others & known)


def _uses(name: str, nodes: list[ast.AST]) -> Permutation | None:
    """The arrays that a permutation, or a part of it, indexes."""
    names = {name}
    for node in nodes:  # parts of it: `some = order[:n]`, `for i in order`
        if isinstance(node, ast.Assign) and _is_part(node.value, names):
            names.add(ast.unparse(node.targets[0]))
        elif isinstance(node, (ast.For, ast.comprehension)) and _is_part(node.iter, names):
            names.add(ast.unparse(node.target))
    indexings = [
        n for n in nodes if isinstance(n, ast.Subscript) and _mentions(n.slice, names) and not _is_part(n, names)
    ]
    counted = sum(_mentions(n.slice, names) for n in indexings)
    parts = sum(_mentions(n.value, names) for n in nodes if isinstance(n, ast.Assign) and _is_part(n.value, names))
    parts += sum(_mentions(n.iter, names) for n in nodes if isinstance(n, (ast.For, ast.comprehension)))
    read = sum(_loads(n, names) for n in nodes)
    if not indexings or not all(_mentions(_rows(n), names) for n in indexings):
        return None
    return Permutation(indexings[0], {ast.unparse(n.value) for n in indexings}, escaped=read > counted + parts)


def _shuffled(scope: ast.AST) -> Iterator[ast.expr]:
    """``random.shuffle(y)`` of one array; not of indices, nor of several arrays after one and the same seed."""
    nodes = list(own_nodes(scope))
    calls = [node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    shuffles = [call for call in calls if call.func.attr == "shuffle" and len(call.args) == 1]  # type: ignore[attr-defined]
    targets = {ast.unparse(n.target) for n in nodes if isinstance(n, (ast.For, ast.comprehension))}
    apart = len(shuffles) < 2 or _one_after_another(shuffles, nodes)
    for call in shuffles if apart else []:
        name = {ast.unparse(call.args[0])}
        if name & targets:  # of each of several arrays, maybe after one and the same seed
            continue
        used = [n.slice for n in nodes if isinstance(n, ast.Subscript)]
        used += [n.iter for n in nodes if isinstance(n, (ast.For, ast.comprehension))]
        if not any(_mentions(index, name) for index in used):
            yield call


def _drawn_apart(scope: ast.AST) -> Iterator[ast.expr]:
    """``x = rng.permutation(x)`` and ``y = rng.permutation(y)``: arrays in two random orders, of which parts are taken."""
    nodes = list(own_nodes(scope))
    assigned = [n for n in nodes if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call)]
    drawn = [n for n in assigned if called_name(n.value) == "permutation" and len(n.value.args) == 1]  # type: ignore[attr-defined,arg-type]
    parted = {ast.unparse(n.value) for n in nodes if isinstance(n, ast.Subscript) and isinstance(n.slice, ast.Slice)}
    indices = {ast.unparse(inner) for n in nodes if isinstance(n, ast.Subscript) for inner in ast.walk(n.slice)}
    arrays = [n for n in drawn if ast.unparse(n.targets[0]) in parted and ast.unparse(n.targets[0]) not in indices]
    calls = [n.value for n in arrays if isinstance(n.value, ast.Call)]
    if len({ast.unparse(call.args[0]) for call in calls}) == len(calls) == 2 and _one_after_another(calls, nodes):
        yield calls[1]


def _cut_off(scope: ast.AST) -> Iterator[ast.expr]:
    """``x[:len(y)]``, where ``y`` was left without rows in between, and nothing else is filtered so: ``y = y[~y.isnan()]``."""
    nodes = list(own_nodes(scope))
    assigned = [n for n in nodes if isinstance(n, ast.Assign)]
    masks = {ast.unparse(n.targets[0]) for n in assigned if _makes_mask(n.value)}
    left = [(ast.unparse(n.targets[0]), whole) for n in assigned if (whole := _filtered(n.value, masks, nodes))]
    kept = {name for names in left for name in names}
    for name, _ in left:
        lengths = _lengths(name, assigned)
        for other in (n for n in nodes if isinstance(n, ast.Subscript) and isinstance(n.slice, ast.Slice)):
            cut = other.slice.upper  # type: ignore[attr-defined]
            from_first = other.slice.lower is None and other.slice.step is None  # type: ignore[attr-defined]
            if from_first and cut is not None and ast.unparse(cut) in lengths and ast.unparse(other.value) not in kept:
                yield other


def _filtered(value: ast.expr, masks: set[str], nodes: list[ast.AST]) -> str:
    """What ``y[mask]``, ``y.dropna()`` or ``np.array([v for v in y if v is not None])`` leaves rows out of; '' for others."""
    while isinstance(value, ast.Call) and called_name(value) in PASSING and value.args:
        value = value.args[0]
    if isinstance(value, ast.ListComp) and len(value.generators) == 1 and value.generators[0].ifs:
        return ast.unparse(value.generators[0].iter)
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in DROPPING:
        return ast.unparse(value.func.value)
    if not isinstance(value, ast.Subscript) or not (_makes_mask(value.slice) or ast.unparse(value.slice) in masks):
        return ""
    alike = [n for n in nodes if isinstance(n, ast.Subscript) and ast.unparse(n.slice) == ast.unparse(value.slice)]
    return ast.unparse(value.value) if len(alike) == 1 else ""


def _lengths(name: str, assigned: list[ast.Assign]) -> set[str]:
    """How the source may spell the number of its rows, or of those that it and another one have at least."""
    ways = {f"len({name})", f"{name}.shape[0]", f"{name}.size(0)"}
    known = set(ways)
    for each in assigned:
        parts = (
            each.value.args if isinstance(each.value, ast.Call) and called_name(each.value) == "min" else [each.value]
        )
        if ways & {ast.unparse(part) for part in parts}:
            known.add(ast.unparse(each.targets[0]))
    return known


def _makes_mask(node: ast.AST) -> bool:
    """A condition for every row."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
        return True
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in MASKS or (node.func.attr in ("all", "any") and _makes_mask(node.func.value))
    return isinstance(node, ast.Compare)


def _one_after_another(shuffles: list[ast.Call], nodes: list[ast.AST]) -> bool:
    """They draw from one generator, which nothing puts back in between."""
    sources = {ast.unparse(call.func.value) for call in shuffles if isinstance(call.func, ast.Attribute)}
    begin, end = min(call.lineno for call in shuffles), max(call.lineno for call in shuffles)
    between = [n for n in nodes if isinstance(n, ast.Call) and begin <= n.lineno <= end and n not in shuffles]
    inside = any(isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Call) for call in shuffles)
    return len(sources) == 1 and not inside and not any(called_name(n) in PUT_BACK for n in between)


def _rows(node: ast.Subscript) -> ast.AST:
    """What the rows are indexed with; nothing where columns are, or single elements."""
    if not isinstance(node.slice, ast.Tuple):
        return node.slice
    first, *others = node.slice.elts
    whole = all(isinstance(each, ast.Slice) and ast.unparse(each) == ":" for each in others)
    return first if whole else ast.Constant(None)


def _to_come(scope: ast.AST, node: ast.expr, before: int) -> bool:
    """It stands behind the loss, in the same scope, and no loop leads back."""
    inside = list(own_nodes(scope))
    if not before or node.lineno <= before or not any(getattr(n, "lineno", 0) == before for n in inside):
        return False
    loops = [n for n in inside if isinstance(n, LOOPS)]
    return not any(n.lineno <= before and node.lineno <= (n.end_lineno or 0) for n in loops)


def _told_by(scope: ast.AST, node: ast.expr) -> bool:
    """Something else is worked out from the array when it has its order, as targets may be."""
    nodes = list(own_nodes(scope))
    loops = [n for n in nodes if isinstance(n, LOOPS)]
    looped = {id(inner) for loop in loops for inner in ast.walk(loop)}
    names = {ast.unparse(node.args[0])} if isinstance(node, ast.Call) else set()
    for each in (n for n in nodes if isinstance(n, ast.Assign)):
        target = ast.unparse(each.targets[0])
        if node in ast.walk(each.value):
            names.add(target)
        elif each.lineno < node.lineno or (id(each) in looped and id(node) not in looped):
            continue
        elif _is_part(each.value, names):
            names.add(target)
        elif target not in names and any(_works_out(inner, names) for inner in ast.walk(each.value)):
            return True
    return False


def _works_out(node: ast.AST, names: set[str]) -> bool:
    """``3 * x``, ``x @ w``, ``x > 0``, ``f(x)``, ``x.sum(1)``; no conversion, no size, no mean, nothing that takes several."""
    if isinstance(node, (ast.BinOp, ast.Compare)):
        return _mentions(node, names) > _measured(node, names)
    if not isinstance(node, ast.Call):
        return False
    called = called_name(node)
    if called in PASSING or called[:1].isupper():
        return False
    method = isinstance(node.func, ast.Attribute) and _mentions(node.func.value, names) and not _is_part(node, names)
    alone = (
        len(node.args) == 1 and not node.keywords and _mentions(node.args[0], names) > _measured(node.args[0], names)
    )
    return bool(method or alone)


def _measured(node: ast.AST, names: set[str]) -> int:
    """How often only the size is asked for."""
    return sum(_mentions(inner, names) for inner in ast.walk(node) if _is_size(inner))


def _is_size(node: ast.AST) -> bool:
    """``len(x)``, ``x.shape``, ``x.size(0)``."""
    if isinstance(node, ast.Call):
        return called_name(node) in ("len", "numel")
    return isinstance(node, ast.Attribute) and node.attr in ("shape", "size", "ndim") and isinstance(node.ctx, ast.Load)


def _makes_order(node: ast.AST) -> bool:
    """``torch.randperm(n)``, ``rng.permutation(n)``, ``random.sample(range(n), n)``, ``torch.argsort(torch.rand(n))``."""
    if not isinstance(node, ast.Call) or not node.args:
        return False
    called = called_name(node)
    inner = called_name(node.args[0]) if isinstance(node.args[0], ast.Call) else ""
    drawn = (called == "sample" and inner == "range") or (called == "argsort" and inner in ("rand", "randn", "random"))
    return called in ("randperm", "permutation") or drawn


def _bare(node: ast.AST) -> ast.AST:
    """Without ``.tolist()``, ``.to(device)`` and the like."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not _makes_order(node):
        node = node.func.value
    return node


def _is_part(node: ast.AST, names: set[str]) -> bool:
    """``order``, ``order[:n]``, ``order.split(n)``."""
    node = _bare(node)
    while isinstance(node, ast.Subscript):
        node = _bare(node.value)
    return ast.unparse(node) in names


def _loads(node: ast.AST, names: set[str]) -> int:
    if not isinstance(node, (ast.Name, ast.Attribute)) or not isinstance(node.ctx, ast.Load):
        return 0
    return int(ast.unparse(node) in names)


def _mentions(node: ast.AST, names: set[str]) -> int:
    return sum(_loads(inner, names) for inner in ast.walk(node))
