"""The private and fragile places of torch that the sensors hold on to: which one has a new torch moved?

A test that fails here names the sensor that goes blind. The second half runs without those places: nothing may break.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.autograd import graph as autograd_graph
from torch.nn.modules import module as module_hooks
from torch.nn.utils import clip_grad
from torch.optim import lr_scheduler
from torch.optim import optimizer as optimizer_module
from torch.utils.data import DataLoader, dataloader

SOURCE = Path(__file__).resolve().parents[2] / "src"


def seen_by(monkeypatch, owner, name, *, act):
    """Positional and keyword arguments of each call of ``owner.name`` while ``act`` runs."""
    original, calls = getattr(owner, name), []

    def recorded(*args, **kwargs):
        calls.append((args, kwargs))
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, recorded)
    act()
    return calls


# --------------------------------------------------------------------------- backward (sensors/backward.py)


def leaf(*shape):
    return torch.ones(*shape, requires_grad=True)


@pytest.mark.parametrize(
    "act",
    [
        lambda root: root.backward(),
        torch.autograd.backward,
        lambda root: torch.autograd.backward([root], retain_graph=True),
    ],
    ids=["Tensor.backward", "autograd.backward", "a list"],
)
def test_every_backward_goes_through_the_private_entry(monkeypatch, act):
    assert inspect.isfunction(torch.autograd._engine_run_backward)
    root = (leaf(3) * 2).sum()
    ((args, kwargs),) = seen_by(monkeypatch, torch.autograd, "_engine_run_backward", act=lambda: act(root))
    assert args[0][0] is root
    assert kwargs["accumulate_grad"] is True


def test_autograd_grad_says_that_it_accumulates_nothing(monkeypatch):
    x = leaf(3)
    root = (x * 2).sum()
    ((_, kwargs),) = seen_by(
        monkeypatch, torch.autograd, "_engine_run_backward", act=lambda: torch.autograd.grad(root, x)
    )
    assert kwargs["accumulate_grad"] is False


def test_reentrant_checkpoint_runs_a_backward_inside_the_backward(monkeypatch):
    from torch.utils.checkpoint import checkpoint

    root = checkpoint(lambda x: x.exp(), leaf(3), use_reentrant=True).sum()
    assert len(seen_by(monkeypatch, torch.autograd, "_engine_run_backward", act=root.backward)) == 2


def test_fallback_is_what_tensor_backward_calls(monkeypatch):
    root = (leaf(3) * 2).sum()
    ((args, _),) = seen_by(monkeypatch, torch.autograd, "backward", act=root.backward)
    assert args[0] is root or args[0][0] is root


# --------------------------------------------------------------------------- graph (sensors/graph.py)


def saved_names(node):
    return {name for name in dir(node) if name.startswith("_saved_")}


@pytest.mark.parametrize(
    ("make", "name", "saved"),
    [
        (lambda x: nn.functional.nll_loss(x, torch.tensor([0, 1])), "NllLossBackward0", {"self", "target", "reduction", "ignore_index", "weight"}),
        (lambda x: nn.functional.nll_loss(x.view(2, 3, 1, 1), torch.zeros(2, 1, 1, dtype=torch.long)), "NllLoss2DBackward0", {"self", "target", "reduction"}),
        (lambda x: x.softmax(1), "SoftmaxBackward0", {"result", "dim"}),
        (lambda x: x.log_softmax(1), "LogSoftmaxBackward0", {"result", "dim"}),
        (lambda x: x.sigmoid(), "SigmoidBackward0", {"result"}),
        (lambda x: x.relu(), "ReluBackward0", {"result"}),
        (lambda x: nn.functional.mse_loss(x, torch.zeros(2, 3)), "MseLossBackward0", {"self", "target", "reduction"}),
        (lambda x: nn.functional.binary_cross_entropy(x * 0.5, torch.zeros(2, 3)), "BinaryCrossEntropyBackward0", {"self", "target"}),
        (lambda x: nn.functional.binary_cross_entropy_with_logits(x, torch.zeros(2, 3)), "BinaryCrossEntropyWithLogitsBackward0", {"self", "target"}),
        (lambda x: x / 4, "DivBackward0", {"other"}),
        (lambda x: x * 4, "MulBackward0", {"other"}),
        (lambda x: x.log(), "LogBackward0", {"self"}),
        (lambda x: x.expand(4, 2, 3), "ExpandBackward0", {"self_sym_sizes"}),
    ],
)  # fmt: skip
def test_nodes_keep_what_is_read_from_them(make, name, saved):
    node = make(leaf(2, 3)).grad_fn
    assert node.name() == name
    assert {f"_saved_{value}" for value in saved} <= saved_names(node)


def test_saved_values_tell_reduction_and_ignored_index():
    node = nn.functional.nll_loss(leaf(2, 3), torch.tensor([0, 1]), reduction="sum", ignore_index=-7).grad_fn
    assert (node._saved_reduction, node._saved_target.tolist()) == (2, [0, 1])
    assert node._saved_ignore_index % 2**64 == -7 % 2**64  # torch 2.13 gives it without a sign


def test_saved_values_are_gone_after_backward():
    loss = leaf(2, 3).sigmoid().sum()
    node = loss.grad_fn.next_functions[0][0]
    loss.backward()
    with pytest.raises(RuntimeError, match="freed"):
        node._saved_result


def test_a_saved_value_tells_whether_reading_it_calls_the_users_code():
    """Without this, reading ``_saved_*`` under a checkpoint runs the checkpointed forward pass once more."""
    with autograd_graph.saved_tensors_hooks(lambda kept: kept, lambda kept: kept):
        hooked = leaf(3).sigmoid().grad_fn
    assert hooked._raw_saved_result.unpack_hook is not None
    assert leaf(3).sigmoid().grad_fn._raw_saved_result.unpack_hook is None


def test_nodes_tell_their_place_and_the_shape_they_made():
    x = leaf(2, 3)
    first = x.exp()
    second = first.sum(0)
    assert second.grad_fn._sequence_nr() > first.grad_fn._sequence_nr() >= 0
    assert [tuple(meta.shape) for meta in second.grad_fn._input_metadata] == [(3,)]


def test_leaves_are_the_variables_of_accumulation_nodes():
    x = leaf(3)
    (node, index), *_ = (x * 2).grad_fn.next_functions
    assert (node.name(), index, node.variable is x) == ("torch::autograd::AccumulateGrad", 0, True)


def test_a_node_carries_our_sentinel():
    node = (leaf(3) * 2).grad_fn
    node.metadata["flatline"] = 1
    assert node.metadata == {"flatline": 1}


# --------------------------------------------------------------------------- data (sensors/data.py)


def test_iterators_of_data_loaders_share_one_base():
    base = dataloader._BaseDataLoaderIter
    assert list(inspect.signature(base.__init__).parameters) == ["self", "loader"]
    assert all(
        inspect.isfunction(inspect.getattr_static(base, name)) for name in ("__next__", "_next_index", "__init__")
    )
    for iterator in (dataloader._SingleProcessDataLoaderIter, dataloader._MultiProcessingDataLoaderIter):
        assert issubclass(iterator, base)
        assert "__next__" not in vars(iterator)
        assert "_next_index" not in vars(iterator)


def test_a_batch_takes_one_next_and_one_index(monkeypatch):
    base = dataloader._BaseDataLoaderIter
    calls = seen_by(monkeypatch, base, "_next_index", act=lambda: next(iter(DataLoader([1, 2, 3], batch_size=2))))
    assert len(calls) == 1
    assert calls[0][0][0]._num_workers == 0
    with pytest.raises(StopIteration):
        base.__next__(iter(DataLoader([])))


def test_an_iterator_takes_new_attributes():
    iterator = iter(DataLoader([1]))
    iterator._flatline_loader = 1
    assert iterator._flatline_loader == 1


# --------------------------------------------------------------------------- optimizers, schedules, clipping, scaling


def test_global_hooks_of_optimizers_reach_every_step():
    seen = []
    handles = [
        optimizer_module.register_optimizer_step_pre_hook(
            lambda optimizer, args, kwargs: seen.append(("pre", args[0]))
        ),
        optimizer_module.register_optimizer_step_post_hook(
            lambda optimizer, args, kwargs: seen.append(("post", args[0]))
        ),
    ]
    optimizer = torch.optim.SGD([leaf(3)], 0.1)
    optimizer.step()
    for handle in handles:
        handle.remove()
    optimizer.step()
    assert seen == [("pre", optimizer), ("post", optimizer)]


@pytest.mark.parametrize("name", ["__init__", "zero_grad", "add_param_group"])
def test_optimizers_have_the_patched_methods(name):
    assert inspect.isfunction(inspect.getattr_static(torch.optim.Optimizer, name))


def test_schedulers_tell_their_own_first_step(monkeypatch):
    optimizer, told = torch.optim.SGD([leaf(3)], 0.1), []
    original = lr_scheduler.LRScheduler.step
    monkeypatch.setattr(
        lr_scheduler.LRScheduler, "step", lambda self, *args: (told.append(self._is_initial), original(self, *args))[1]
    )
    scheduler = lr_scheduler.StepLR(optimizer, 2)
    optimizer.step()
    scheduler.step()
    assert told == [True, False]


@pytest.mark.parametrize(
    ("build", "name", "value"),
    [
        (lambda o: lr_scheduler.CosineAnnealingLR(o, 9), "T_max", 9),
        (lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=9), "total_steps", 9),
        (lambda o: lr_scheduler.LinearLR(o, total_iters=9), "total_iters", 9),
        (lambda o: lr_scheduler.StepLR(o, 9), "step_size", 9),
        (lambda o: lr_scheduler.ExponentialLR(o, 0.9), "gamma", 0.9),
        (lambda o: lr_scheduler.LambdaLR(o, float), "lr_lambdas", [float]),
    ],
)
def test_schedulers_tell_their_horizon(build, name, value):
    assert getattr(build(torch.optim.SGD([leaf(3)], 0.1)), name) == value


@pytest.mark.parametrize("name", ["LRScheduler", "ReduceLROnPlateau", "SequentialLR", "ChainedScheduler"])
def test_schedulers_are_built_and_stepped_by_plain_functions(name):
    found = getattr(lr_scheduler, name)
    assert inspect.isfunction(inspect.getattr_static(found, "step"))
    assert inspect.isfunction(inspect.getattr_static(found, "__init__"))


@pytest.mark.parametrize("name", ["clip_grad_norm_", "clip_grad_value_"])
def test_clipping_has_two_homes(name):
    assert inspect.isfunction(getattr(clip_grad, name))
    assert getattr(nn.utils, name) is getattr(clip_grad, name)


@pytest.mark.parametrize("name", ["scale", "unscale_", "step"])
def test_the_scaler_is_one_class_for_all_devices(name):
    scaler = torch.amp.grad_scaler.GradScaler
    assert inspect.isfunction(inspect.getattr_static(scaler, name))
    assert torch.amp.GradScaler is scaler
    assert issubclass(torch.cuda.amp.GradScaler, scaler)


def test_the_scaler_tells_its_scale():
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    assert scaler.scale(torch.ones(())).item() == 8.0
    assert (scaler.is_enabled(), scaler.get_scale()) == (True, 8.0)


def test_fused_norms_come_in_float32():
    assert [norm.dtype for norm in torch._foreach_norm([torch.ones(3, dtype=torch.float16)], 2, torch.float32)] == [
        torch.float32
    ]


# --------------------------------------------------------------------------- modules (sensors/models.py)


@pytest.mark.parametrize(
    "name",
    [
        "register_module_forward_pre_hook",
        "register_module_forward_hook",
        "register_module_module_registration_hook",
        "register_module_parameter_registration_hook",
    ],
)
def test_global_hooks_of_modules_come_and_go(name):
    handle = getattr(module_hooks, name)(lambda *args: None)
    assert handle.id in handle.hooks_dict_ref()
    handle.remove()
    assert handle.id not in handle.hooks_dict_ref()


def test_the_forward_hook_can_be_called_when_forward_raises():
    assert "always_call" in inspect.signature(module_hooks.register_module_forward_hook).parameters


@pytest.mark.parametrize("name", ["train", "zero_grad", "load_state_dict"])
def test_modules_have_the_patched_methods(name):
    assert inspect.isfunction(inspect.getattr_static(nn.Module, name))


def test_bases_of_norms_and_dropouts_are_where_they_were():
    assert issubclass(nn.BatchNorm2d, nn.modules.batchnorm._BatchNorm)
    assert issubclass(nn.InstanceNorm1d, nn.modules.batchnorm._NormBase)
    assert issubclass(nn.AlphaDropout, nn.modules.dropout._DropoutNd)
    assert issubclass(nn.Conv1d, nn.modules.conv._ConvNd)


def test_transforms_are_seen():
    inside = []
    torch.func.vmap(lambda x: (inside.append(torch._C._functorch.peek_interpreter_stack()), x)[1])(torch.ones(2))
    assert inside[0] is not None
    assert torch._C._functorch.peek_interpreter_stack() is None


def test_compiling_can_be_asked():
    assert torch.compiler.is_compiling() is False


# --------------------------------------------------------------------------- where such a place is missing

TRAINING = """
import json, sys
import torch
import torch.nn.functional as F
from torch import nn

{missing}
import flatline

def train(scale):
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3){softmax})
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(8):
        x = torch.randn(16, 8)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), x[:, :3].argmax(1)) * scale
        {backward}
        optimizer.step()

with flatline.watch() as run:
    train({scale})
report = run.report
print(json.dumps([[f.code for f in report.findings], report.notes, sorted(report.checked)]))
"""
WITHOUT_ENTRY = """
entry = torch.autograd._engine_run_backward
del torch.autograd._engine_run_backward
import torch.autograd.graph as inner
def backward(tensors, grad_tensors=None, retain_graph=None, create_graph=False, grad_variables=None, inputs=None):
    roots = (tensors,) if isinstance(tensors, torch.Tensor) else tuple(tensors)
    ones = tuple(torch.ones_like(root) for root in roots)
    entry(roots, ones, bool(retain_graph), create_graph, (), allow_unreachable=True, accumulate_grad=True)
torch.autograd.backward = backward
"""


def watched(missing="", softmax="", backward="loss.backward()", scale="1.0"):
    """(codes found, notes, codes checked) of a small training in a torch that lacks something."""
    text = TRAINING.format(missing=missing, softmax=softmax, backward=backward, scale=scale)
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-c", text]
    ended = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    found, notes, checked = json.loads(ended.stdout)
    return found, notes, checked


@pytest.mark.parametrize("backward", ["loss.backward()", "torch.autograd.backward([loss])"])
def test_without_the_private_entry_the_loss_is_still_seen(backward):
    assert watched(WITHOUT_ENTRY, softmax=", nn.Softmax(1)", backward=backward)[:2] == (["O12"], [])


def test_without_the_private_entry_a_loss_of_nan_is_still_seen():
    found, notes, _ = watched(WITHOUT_ENTRY, scale="float('nan')")
    assert any(code.startswith("N") for code in found)
    assert notes == []


def test_without_the_private_entry_the_same_is_checked():
    assert watched(WITHOUT_ENTRY) == watched()


def test_other_places_may_be_missing():
    missing = """
del torch.nn.modules.module.register_module_module_registration_hook
del torch.nn.modules.module.register_module_parameter_registration_hook
del torch.nn.utils.clip_grad.clip_grad_value_
"""
    assert watched(missing, softmax=", nn.Softmax(1)")[:2] == (["O12"], [])


@pytest.mark.parametrize(
    ("missing", "sensor"),
    [
        ("import torch.utils.data; del torch.utils.data.dataloader._BaseDataLoaderIter", "DataSensor"),
        ("import torch.amp; del torch.amp.grad_scaler.GradScaler", "ClipSensor"),
    ],
)
def test_a_sensor_that_cannot_be_put_on_is_told_and_the_others_work(missing, sensor):
    found, notes, _ = watched(missing, softmax=", nn.Softmax(1)")
    assert found == ["O12"]
    assert [note for note in notes if sensor in note] == notes
    assert len(notes) == 1
