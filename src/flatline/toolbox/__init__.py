"""Plain functions and classes for any PyTorch loop, each usable alone.

Needs torch, as nothing else of flatline's public names does: ``import flatline.toolbox`` loads it.
"""

from __future__ import annotations

from flatline.toolbox._losses import entropy_floor, supervised
from flatline.toolbox._state import preserved
from flatline.toolbox.audits import GradientHealth, ParameterAudit, gradient_health, parameter_audit
from flatline.toolbox.checkpoints import LoadResult, load_matching_state_dict
from flatline.toolbox.clipping import GradientClipper
from flatline.toolbox.deciding import EarlyStopping, IQMResult, interquartile_mean, parameter_norm
from flatline.toolbox.fitting import FitResult, fit, warmup_cosine
from flatline.toolbox.groups import freeze, param_groups, unfreeze
from flatline.toolbox.initialising import (
    ActivationResult,
    check_activations,
    init_kaiming_,
    init_transformer_,
    init_xavier_,
)
from flatline.toolbox.landscapes import (
    ConnectivityResult,
    LandscapeResult,
    filter_normalised,
    loss_plane,
    loss_slice,
    mode_connectivity,
    sharpness,
)
from flatline.toolbox.learning_rates import LRRangeResult, lr_range_test
from flatline.toolbox.nonfinite import NaNGuard, NonFinite, find_non_finite
from flatline.toolbox.overfitting import OverfitResult, overfit_one_batch
from flatline.toolbox.reductions import TokenAccumulation, masked_mean, min_snr_weights, whiten, z_loss
from flatline.toolbox.sam import SAM
from flatline.toolbox.seeding import seed_everything, worker_init_fn

__all__ = [
    "SAM",
    "ActivationResult",
    "ConnectivityResult",
    "EarlyStopping",
    "FitResult",
    "GradientClipper",
    "GradientHealth",
    "IQMResult",
    "LRRangeResult",
    "LandscapeResult",
    "LoadResult",
    "NaNGuard",
    "NonFinite",
    "OverfitResult",
    "ParameterAudit",
    "TokenAccumulation",
    "check_activations",
    "entropy_floor",
    "filter_normalised",
    "find_non_finite",
    "fit",
    "freeze",
    "gradient_health",
    "init_kaiming_",
    "init_transformer_",
    "init_xavier_",
    "interquartile_mean",
    "load_matching_state_dict",
    "loss_plane",
    "loss_slice",
    "lr_range_test",
    "masked_mean",
    "min_snr_weights",
    "mode_connectivity",
    "overfit_one_batch",
    "param_groups",
    "parameter_audit",
    "parameter_norm",
    "preserved",
    "seed_everything",
    "sharpness",
    "supervised",
    "unfreeze",
    "warmup_cosine",
    "whiten",
    "worker_init_fn",
    "z_loss",
]
