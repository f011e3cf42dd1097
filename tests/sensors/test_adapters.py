"""Adapters that a script looks for layers for, and never makes."""

from __future__ import annotations

import linecache
import sys
import types

import pytest
from torch import nn

from flatline.sensors import adapters
from flatline.sensors.adapters import never_made

START = """
from torch import nn

TARGETS = ("q_proj", "v_proj")

class Lora(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base, self.a = base, nn.Linear(8, 2)

class Other(nn.Module):
    pass

"""
ADD = """
def add(model, targets):
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear) and name in targets:
                setattr(parent, name, Lora(child))
"""


@pytest.fixture
def told(monkeypatch, tmp_path):
    """What is found in a script that is over; nothing of it has to run, but its functions and classes."""

    def tell(text, made=("Linear",), **names):
        file = tmp_path / "script.py"
        file.write_text(START + text)
        linecache.checkcache()
        main = types.ModuleType("__main__")
        main.__file__ = str(file)
        monkeypatch.setitem(sys.modules, "__main__", main)
        definitions = text.partition("# from here on")[0]
        exec(compile(START + definitions, str(file), "exec"), vars(main))
        vars(main).update(names)
        monkeypatch.setattr(adapters, "users_frame", lambda: None)
        monkeypatch.setattr(adapters, "is_users", lambda name: name == str(file))
        return never_made({getattr(nn, name, None) or vars(main)[name] for name in made})

    return tell


def test_names_that_are_given(told):
    found = told(ADD + "# from here on\nmodel = add(net, TARGETS)")
    assert (found.adapter, found.function, found.targets) == ("Lora", "add", ("q_proj", "v_proj"))
    assert told(ADD + "# from here on\nadd(net, ['query'])").targets == ("query",)
    assert told(ADD + "# from here on\nadd(net, targets={'b', 'a'})").targets == ("a", "b")


def test_names_that_a_dataclass_holds(told):
    config = "\n@dataclass\nclass Settings:\n    targets: list = field(default_factory=lambda: ['query', 'dense'])\n"
    script = ADD.replace("in targets", "in config.targets").replace("(model, targets)", "(model, config)")
    found = told(
        "from dataclasses import dataclass, field\n" + config + script + "# from here on\nadd(net, Settings())"
    )
    assert found.targets == ("query", "dense")
    unknown = config.replace("lambda: ['query', 'dense']", "list")
    assert (
        told("from dataclasses import dataclass, field\n" + unknown + script + "# from here on\nadd(net, Settings())")
        is None
    )


def test_from_main(told):
    main = "\ndef main():\n    fit(add(net, TARGETS))\n# from here on\nif __name__ == '__main__':\n    main()"
    assert told(ADD + main).function == "add"


def test_in_the_script_itself(told):
    loop = "for name, m in net.named_modules():\n    if not name.endswith('q_proj'):\n        continue\n    m.lora = Lora(m)"
    assert told("# from here on\n" + loop).targets == ("q_proj",)
    chosen = "names = [n for n, m in net.named_modules() if n in TARGETS]\nfor n in names:\n    put(n, Lora(net))"
    assert told("# from here on\n" + chosen).targets == ("q_proj", "v_proj")


def test_methods_and_helpers(told):
    text = """
class Injector:
    def put(self, parent, name, child):
        setattr(parent, name, Lora(child))

    def apply(self, model):
        for name, child in model.named_modules():
            if any(key in name for key in TARGETS):
                self.put(model, name, child)
# from here on
Injector().apply(net)
"""
    assert told(text).function == "apply"


def test_types_only(told):
    loop = "for name, child in net.named_children():\n    if isinstance(child, nn.Conv2d):\n        net.x = Lora(child)"
    assert told("# from here on\n" + loop).targets == ()


@pytest.mark.parametrize(
    "text",
    [
        ADD + "# from here on\nif args.lora:\n    add(net, TARGETS)",
        ADD + "# from here on\nfor each in nets:\n    add(each, TARGETS)",
        ADD + "# from here on\nadd(net, args.targets)",
        ADD + "# from here on\nadd(net, [])",
        ADD + "# from here on\nuse and add(net, TARGETS)",
        ADD.replace("name in targets", "name in targets and use") + "# from here on\nadd(net, TARGETS)",
        ADD.replace("name in targets", "kind != 'none'") + "# from here on\nadd(net, TARGETS)",
        ADD.replace("    for parent", "    if off:\n        return\n    for parent")
        + "# from here on\nadd(net, TARGETS)",
        ADD + "# from here on\nadded = lambda: add(net, TARGETS)",
    ],
)
def test_what_may_not_have_run_is_not_judged(told, text):
    assert told(text) is None


def test_adapters_that_were_made(told):
    assert told(ADD + "# from here on\nadd(net, TARGETS)", made=("Linear", "Lora")) is None
    either = ADD + "            elif isinstance(child, nn.Conv2d):\n                setattr(parent, name, Other())\n"
    assert told(either + "# from here on\nadd(net, TARGETS)", made=("Linear", "Other")) is None
    assert told(either + "# from here on\nadd(net, TARGETS)").adapter == "Lora"


@pytest.mark.parametrize(
    "given", ["ARGS.split(',')", "set(ARGS.strip().split(','))", "[t.strip() for t in ARGS.split(',')]"]
)
def test_names_in_one_text_that_is_split(told, given):
    found = told(ADD + f"ARGS = 'q_proj, v_proj'\n# from here on\nadd(net, {given})")
    assert sorted(found.targets) == ["q_proj", "v_proj"]


def test_names_that_a_function_splits(told):
    split = ADD.replace("    for parent", "    names = [t.strip() for t in targets.split(',')]\n    for parent", 1)
    found = told(split.replace("in targets:", "in names:") + "# from here on\nadd(net, 'q_proj, v_proj')")
    assert found.targets == ("q_proj", "v_proj")


def test_an_attribute_of_what_the_script_has(told):
    options = types.SimpleNamespace(targets="q_proj")
    assert told(ADD + "# from here on\nadd(net, args.targets.split(','))", args=options).targets == ("q_proj",)


def test_near_miss_a_text_that_is_not_known_is_split(told):
    assert told(ADD + "# from here on\nadd(net, args.targets.split(','))") is None
