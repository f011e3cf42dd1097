"""Tables sorted as text: found in the source, and silent where the order may be right."""

import pytest

from flatline.sensors.text_order import sorted_by_text

RETURNED = """
def read(path):
    rows = {r["id"]: float(r["y"]) for r in csv.DictReader(open(path))}
    return np.array([rows[k] for k in sorted(rows)])
def main():
    y = read("labels.csv")
    x = np.load("x.npy")
    fit(x[train], y[train])
"""
FILLED = """
table = {}
for row in csv.reader(handle):
    table[row[0]] = int(row[1])
labels = [value for _, value in sorted(table.items())]
x, y = torch.from_numpy(curves), torch.tensor(labels)
data = TensorDataset(x, y)
"""
OF_JSON = """
class Parcels(Dataset):
    def __init__(self, x, path):
        table = json.load(open(path))
        self.x = x
        self.y = torch.tensor([table[k] for k in sorted(table)])
    def __getitem__(self, i):
        return self.x[i], self.y[i]
"""
BOTH_SORTED = """
def features(handle):
    rows = list(csv.DictReader(handle))
    rows.sort(key=lambda r: r["id"])
    return np.array([float(r["x"]) for r in rows])
def outcomes(handle):
    rows = [(int(r["id"]), int(r["y"])) for r in csv.DictReader(handle)]
    return np.array([y for _, y in sorted(rows)])
"""
SICK = {
    "both sorted": (BOTH_SORTED, "rows.sort(key=lambda r: r['id'])"),
    "both sorted, by an item getter": (
        BOTH_SORTED.replace('lambda r: r["id"]', 'itemgetter("id")'),
        "rows.sort(key=itemgetter('id'))",
    ),
    "returned": (RETURNED, "sorted(rows)"),
    "filled": (FILLED, "sorted(table.items())"),
    "JSON": (OF_JSON, "sorted(table)"),
}


def told(folder, code):
    (folder / "train.py").write_text(code)
    return sorted_by_text(str(folder / "train.py"))


@pytest.mark.parametrize(("code", "text"), SICK.values(), ids=SICK)
def test_sorted_by_text(tmp_path, code, text):
    found, where = told(tmp_path, code)
    assert found == text
    assert text in code.replace('"', "'").splitlines()[where.line - 1]


HEALTHY = {
    "both as numbers": BOTH_SORTED.replace('r: r["id"]', 'r: int(r["id"])'),
    "both as text": BOTH_SORTED.replace('int(r["id"])', 'r["id"]'),
    "by another column": BOTH_SORTED.replace('r: r["id"]', 'r: r["x"]'),
    "one alone": BOTH_SORTED.partition("def outcomes")[0],
    "both sorted, of one length": BOTH_SORTED + "name = f'{i:05d}'",
    "by number": FILLED.replace("table[row[0]]", "table[int(row[0])]"),
    "with a key": OF_JSON.replace("sorted(table)", "sorted(table, key=int)"),
    "of one length": FILLED + "name = f'{i:05d}'",
    "the other side is sorted, too": RETURNED.replace('np.load("x.npy")', "np.array([t[k] for k in sorted(t)])"),
    "by pandas": RETURNED.replace('np.load("x.npy")', "frame.sort_values('id').to_numpy()"),
    "nothing stands beside it": RETURNED.replace("fit(x[train], y[train])", "fit(y[train])"),
    "keys that are not read": RETURNED.replace("csv.DictReader(open(path))", "records"),
    "no order at all": RETURNED.replace("sorted(rows)", "rows"),
}


@pytest.mark.parametrize("code", HEALTHY.values(), ids=HEALTHY)
def test_near_miss_sorted_by_text(tmp_path, code):
    assert told(tmp_path, code) == ("", None)


def test_no_source():
    assert sorted_by_text("nowhere.py") == ("", None)
