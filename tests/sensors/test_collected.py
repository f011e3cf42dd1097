"""Features collected from a shuffled loader, beside labels in the order of the data set."""

from __future__ import annotations

import pytest

from flatline.sensors.collected import collected_shuffled

LOADER = "loader = DataLoader(ds, batch_size=8, shuffle=True)\n"
LOOP = "feats = []\nfor x, _ in loader:\n    feats.append(net(x))\n"
PAIRED = "train = TensorDataset(torch.cat(feats), labels)\n"
EXTRACT = """def extract(net, batches):
    out = []
    for x, y in batches:
        out.append(net(x))
    return torch.cat(out)
"""
APART = {
    "a data set": LOADER + LOOP + PAIRED,
    "whitened": LOADER
    + LOOP
    + "f = torch.cat(feats)\nf = (f - f.mean(0)) / f.std(0)\ntrain = TensorDataset(f, labels)\n",
    "the same rows": LOADER + LOOP + "feats = torch.cat(feats)\nfor i in rows:\n    xb, yb = feats[i], labels[i]\n",
    "in a function": LOADER + EXTRACT + "feats = extract(net, loader)\n" + PAIRED.replace("torch.cat(feats)", "feats"),
    "a method's result": LOADER
    + LOOP.replace("net(x)", "net(x).cpu().numpy()")
    + "pairs = zip(np.concatenate(feats), labels)\n",
}
TOGETHER = {
    "in order": LOADER.replace("True", "False") + LOOP + PAIRED,
    "as the option says": LOADER.replace("True", "args.shuffle") + LOOP + PAIRED,
    "another sampler": LOADER.replace("shuffle=True", "sampler=order, shuffle=True") + LOOP + PAIRED,
    "labels collected": LOADER
    + LOOP.replace("_", "y").replace("net(x))", "net(x)); ys.append(y)")
    + PAIRED.replace("labels", "torch.cat(ys)"),
    "labels read": LOADER + LOOP.replace("_", "y").replace("net(x)", "net(x, y)") + PAIRED,
    "labels of a list": "labels = []\nfor _, y in other:\n    labels.append(y)\n" + LOADER + LOOP + PAIRED,
    "statistics": LOADER + LOOP + "m = torch.cat(feats).mean(0)\nx = x - m\ntrain = TensorDataset(x, labels)\n",
    "a part": LOADER + LOOP + "train = TensorDataset(feats[0], labels)\n",
    "training": LOADER + LOOP + "    loss.backward()\n" + PAIRED,
    "for itself": LOADER + LOOP + "bank = torch.cat(feats)\n",
    "another loader": LOADER
    + EXTRACT
    + "feats = extract(net, DataLoader(ds))\n"
    + PAIRED.replace("torch.cat(feats)", "feats"),
    "two loaders": LOADER + LOADER.replace("True", "False") + LOOP + PAIRED,
    "in order, a function": LOADER.replace("True", "False")
    + EXTRACT
    + "feats = extract(net, loader)\n"
    + PAIRED.replace("torch.cat(feats)", "feats"),
}


@pytest.mark.parametrize("code", APART.values(), ids=APART)
def test_apart(tmp_path, code):
    file = tmp_path / "train.py"
    file.write_text(code)
    text, where = collected_shuffled(str(file))
    assert text.startswith("for x, ")
    assert where is not None
    assert code.splitlines()[where.line - 1].strip().startswith(text)


@pytest.mark.parametrize("code", TOGETHER.values(), ids=TOGETHER)
def test_near_miss(tmp_path, code):
    (tmp_path / "train.py").write_text(code)
    assert collected_shuffled(str(tmp_path / "train.py")) == ("", None)


def test_no_file(tmp_path):
    assert collected_shuffled(str(tmp_path / "none.py")) == ("", None)
