"""Models of transformers that work out their loss themselves, from the labels that they are given."""

from __future__ import annotations

import ast
import re

from flatline.readers.source._resolve import Project
from flatline.readers.source._scopes import Use

MODELS = re.compile(
    r"transformers\.(.*\.)?\w*(For(TokenClassification|CausalLM|MaskedLM|ConditionalGeneration|Seq2SeqLM)|LMHeadModel)"
    r"(\.from_(pretrained|config))?"
)
NAMED = re.compile(r"For(TokenClassification|CausalLM|MaskedLM|ConditionalGeneration|Seq2SeqLM)|LMHeadModel")
OTHER_LOSS = re.compile(r"cross_entropy|CrossEntropy|nll_loss|NLLLoss|compute_loss|FocalLoss|SFTTrainer")
PAD_CLASS = re.compile(r"""['"][<\[]?pad[>\]]?['"]\s*[,:\]]""", re.IGNORECASE)  # padding is a class of its own
TAKEN = re.compile(r"\.loss\b|\[['\"]loss['\"]\]|\[0\]|,\s*\w+\s*=")


def labels_for(project: Project, call: ast.Call, use: Use, text: str) -> tuple[ast.expr, tuple[str, ...]] | None:
    """The labels that a call gives a model, and the key under which they are in that."""
    named = [k.value for k in call.keywords if k.arg == "labels"]
    spread = [k.value for k in call.keywords if k.arg is None]
    if len(named) + len(spread) != 1 or (isinstance(call.func, ast.Attribute) and call.func.attr == "generate"):
        return None
    if NAMED.search(text) is None or OTHER_LOSS.search(text) or PAD_CLASS.search(text) or not TAKEN.search(text):
        return None
    things = project.things(call.func, use)
    if not things or not all(t.call is not None and MODELS.fullmatch(t.name) for t in things):
        return None
    return (named[0], ()) if named else (spread[0], ("labels",))
