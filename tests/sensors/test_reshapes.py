"""Views that name the dimensions of their tensor in another order."""

import ast

import pytest

from flatline.sensors.reshapes import cut_anew


def asked(body):
    lines = "\n".join(f"    {line}" for line in body.split("; "))
    return cut_anew(ast.parse(f"def forward(self, x):\n{lines}\n").body[0], "net.py")


@pytest.mark.parametrize(
    "body",
    [
        "b, t, c = x.shape; x = x.view(t, b, c)",
        "b, c, h, w = x.size(); s = x.reshape(w, b, c * h)",
        "n, t, d = x.shape; y = self.rnn(x.reshape((t, n, d)))",
        "b, c, h, w = f.shape; return f.view(h * w, b, c)",
    ],
)
def test_another_order(body):
    where, call, order = asked(body)
    assert call in body.replace("((", "((")
    assert order.count(",") >= 2
    assert (where.file, where.function) == ("net.py", "forward")


@pytest.mark.parametrize(
    "body",
    [
        "b, t, c = x.shape; x = x.permute(1, 0, 2).reshape(t, b, c)",
        "b, t, c = x.shape; x = x.transpose(0, 1); x = x.reshape(t, b, c)",
        "b, t, c = x.shape; x = x.view(b * t, c)",
        "b, c, h, w = x.shape; x = x.view(b, c, h * w).permute(2, 0, 1)",
        "b, c, h, w = x.shape; x = x.view(1, b * c, h, w)",
        "t, b, d = q.size(); q = q.view(t, b * self.heads, self.width).transpose(0, 1)",
        "b, t, c = x.shape; y = z.view(t, b, c)",
        "b, t = x.shape; x = x.view(t, b)",
        "b, t, c = x.shape; t, b = b, t; x = x.view(t, b, c)",
        "b, t, c = x.shape; x = x.view(-1, b, c)",
        "b, t, c = x.shape; x = x.view(self.groups, b, c)",
    ],
)
def test_near_miss(body):
    assert asked(body) is None
