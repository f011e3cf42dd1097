"""Which curve is what."""

from __future__ import annotations

import pytest

from flatline.readers._roles import role_of, roles


@pytest.mark.parametrize(
    ("role", "names"),
    [
        ("train_loss", "loss train/loss train_loss train_loss_step Loss/train training/loss train/ce trainLoss Train/Loss loss_epoch"),
        ("val_loss", "val_loss eval_loss eval/loss valid/ce Loss/val validation/loss test_loss val/loss_epoch valLoss evaluation/nll"),
        ("learning_rate", "lr lr-AdamW lr-SGD/pg0 learning_rate train/learning_rate optimizer/lr LearningRate lr/group_0"),
        ("gradient_norm", "grad_norm train/grad_norm gnorm gradient_norm grad_2.0_norm_total grad/norm total_grad_norm"),
        ("train_accuracy", "accuracy acc train/acc train_accuracy mean_token_accuracy train_acc_step"),
        ("val_accuracy", "val_acc eval_accuracy valid/acc test/accuracy val_top1"),
        ("reward", "rollout/ep_rew_mean objective/scores reward objective/rlhf_reward episode_reward charts/episodic_return train/reward r"),
        ("kl", "objective/kl train/approx_kl approx_kl kl policy/approx_kl_avg"),
        ("loss_scale", "loss_scale train/loss_scale amp/scale grad_scale"),
        ("epoch", "epoch train/epoch Epoch"),
    ],
)  # fmt: skip
def test_known_names(role, names):
    assert {name: role_of(name) for name in names.split()} == dict.fromkeys(names.split(), role)


@pytest.mark.parametrize(
    "name",
    [
        "d_loss", "loss/generator", "train/value_loss", "policy_loss", "aux_loss", "kl_loss", "loss_weight", "critic_loss",
        "train/entropy_loss", "rewards/chosen", "rewards/margins", "reward_std", "train/clip_fraction", "grad_norm/layer1.weight",
        "weight_norm", "lr_multiplier", "train_runtime", "val_time", "step", "fps", "loss_improvement", "best_val_loss",
        "entropy", "num_tokens", "perplexity", "eval_runtime", "l", "frac_reward_zero_std", "epoch_time", "", "///", "норма",
    ],
)  # fmt: skip
def test_near_miss_names(name):
    assert role_of(name) == ""


def test_each_role_is_given_once():
    found = roles({"loss": 900, "train_loss_step": 100, "train_loss_epoch": 10, "test_loss": 10, "val_loss": 10})
    assert found == {"train_loss_step": "train_loss", "val_loss": "val_loss"}


def test_a_policys_loss_has_no_role():
    assert roles({"reward": 9, "loss": 9, "kl": 9}) == {"reward": "reward", "kl": "kl"}


def test_kl_of_something_else_has_no_role():
    assert roles({"loss": 9, "kl": 9}) == {"loss": "train_loss"}


def test_the_users_choice_wins():
    assert roles({"loss": 9, "a": 9}, {"train_loss": "a"}) == {"a": "train_loss"}
    assert roles({"reward": 9, "loss": 9}, {"train_loss": "loss"}) == {"reward": "reward", "loss": "train_loss"}
    assert roles({"loss": 9}, {"val_loss": "not there"}) == {"loss": "train_loss"}


def test_the_distance_to_the_reference_goes_before_that_between_two_updates():
    assert roles({"reward": 9, "approx_kl": 90, "kl": 9}) == {"reward": "reward", "kl": "kl"}
    assert roles({"reward": 9, "approx_kl": 90}) == {"reward": "reward", "approx_kl": "kl"}
