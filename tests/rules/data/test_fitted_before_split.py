import pytest

from flatline.rules.data.fitted_before_split import FittedBeforeSplit
from flatline.testing import lint

HEAD = """import numpy as np, pandas as pd, torch
from sklearn.decomposition import PCA
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import LabelEncoder, StandardScaler
from torch.utils.data import TensorDataset, random_split
def read():
    table = pd.read_csv("table.csv")
    return table.drop(columns="y").values, table.y.values
x, y = read()
"""


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (10, "x = StandardScaler().fit_transform(x)\nx_train, x_val, y_train, y_val = train_test_split(x, y)"),
        (11, "scaler = PCA(8)\nz = scaler.fit_transform(x)\na, b, c, d = train_test_split(z, y, test_size=0.2)"),
        (10, "x = (x - x.mean(0)) / x.std(0)\nx_train, x_val = x[:800], x[800:]"),
        (12, "m, s = x.mean(axis=0), x.std(axis=0)\nn = 80\nx = (x - m) / (s + 1e-8)\na = x[:n]\nb = x[n:]"),
        (11, "y = torch.tensor(y)\nx = torch.tensor((x - x.mean()) / x.std()).float()\n"
             "train, val = random_split(TensorDataset(x, y), [80, 20])"),
        (10, "x = (x - x.min(0)) / (x.max(0) - x.min(0))\ntrain, val = train_test_split(x)"),
        (10, "z = StandardScaler().fit_transform(x)\nw = np.hstack([z, y]).astype('float32')\na, b = train_test_split(w)"),
        (11, "def prepare(x):\n    return StandardScaler().fit_transform(x)\nx = prepare(x)\na, b = train_test_split(x)"),
    ],
)  # fmt: skip
def test_fires_source(line, code):
    """Seen as a SourceParsed."""
    (finding,) = lint(FittedBeforeSplit, HEAD + code)
    assert (finding.code, finding.severity, finding.where.line) == ("D10", "hint", line)


def test_message_source():
    code = "x = StandardScaler().fit_transform(x)\nx_train, x_val = train_test_split(x)"
    (finding,) = lint(FittedBeforeSplit, HEAD + code)
    assert finding.message == (
        "`StandardScaler().fit_transform(x)` is fitted to all rows before `train_test_split(x)` (line 11) holds some out"
    )


@pytest.mark.parametrize(
    "code",
    [
        "a, b = train_test_split(x)\nscaler = StandardScaler()\na = scaler.fit_transform(a)\nb = scaler.transform(b)",
        "y = LabelEncoder().fit_transform(y)\na, b, c, d = train_test_split(x, y)",
        "x = (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)\na, b = x[:80], x[80:]",
        "a, b = x[:80], x[80:]\nm, s = a.mean(0), a.std(0)\na, b = (a - m) / s, (b - m) / s",
        "m, s = x[:80].mean(0), x[:80].std(0)\nx = (x - m) / s\na, b = x[:80], x[80:]",
        "m, s = np.load('mean.npy'), np.load('std.npy')\nx = (x - m) / s\na, b = train_test_split(x)",
        "x = StandardScaler().fit_transform(x)\nfirst, rest = x[0], x[1:]",
        "x = (x - x.mean(0)) / x.std(0)\nleft, right = x[:, :8], x[:, 8:]",
        "x = x / 255.0\na, b = train_test_split(x)",
    ],
)
def test_near_miss_source(code):
    assert lint(FittedBeforeSplit, HEAD + code) == []


STORE = """from sklearn.model_selection import train_test_split
from sklearn.preprocessing import QuantileTransformer
class Store:
    def __init__(self, table):
        self.table, self.scaler = table, QuantileTransformer()
    def matrix(self):
        return {matrix}, self.table.y
    def split(self):
        x, y = self.matrix()
        return train_test_split(x, y)
"""
SCALED = 'self.scaler.fit_transform(self.table.values).astype("float32")'


def test_fires_source_in_a_file_that_imports_no_torch():
    (finding,) = lint(FittedBeforeSplit, "import torch\nfrom store import Store", store=STORE.format(matrix=SCALED))
    assert (finding.where.file, finding.where.line) == ("store.py", 7)


@pytest.mark.parametrize("matrix", ["self.table.values", "self.scaler.transform(self.table.values)"])
def test_near_miss_source_in_a_file_that_imports_no_torch(matrix):
    assert lint(FittedBeforeSplit, "import torch\nfrom store import Store", store=STORE.format(matrix=matrix)) == []


def test_near_miss_source_in_a_file_that_nobody_imports():
    assert lint(FittedBeforeSplit, "import torch", store=STORE.format(matrix=SCALED)) == []
