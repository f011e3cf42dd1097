"""A forward without gradients over the first rows of what is learned from."""

import pytest

from flatline.sensors.own_data import looks_at_own_data

LOOP = """
for epoch in range(9):
    for rows in torch.randperm(n).split(64):
        loss = criterion(net({learned}))
        loss.backward()
        step()
    with torch.no_grad():
        spread = net({shown}).std()
"""


def asked(tmp_path, learned, shown):
    file = tmp_path / "train.py"
    file.write_text(LOOP.format(learned=learned, shown=shown))
    return looks_at_own_data(str(file), 8)


@pytest.mark.parametrize(
    ("learned", "shown"),
    [
        ("data.x[rows]", "data.x[:400]"),
        ("augment(x[rows])", "augment(x[:64])"),
        ("x[rows].to(device)", "x[:1000].to(device)"),
    ],
)
def test_the_first_rows(tmp_path, learned, shown):
    assert asked(tmp_path, learned, shown)


@pytest.mark.parametrize(
    ("learned", "shown"),
    [
        ("x_train[rows]", "x_valid[:400]"),
        ("x[rows]", "x[valid]"),
        ("x[rows]", "x[800:]"),
        ("x[rows]", "x[:n_valid]"),
        ("x[0]", "x[:400]"),
        ("x[rows]", "x_valid"),
    ],
)
def test_near_miss(tmp_path, learned, shown):
    assert not asked(tmp_path, learned, shown)


def test_no_source(tmp_path):
    assert not looks_at_own_data(str(tmp_path / "gone.py"), 3)
