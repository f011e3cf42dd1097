"""Models that other libraries build by name: what is in them that depends on the mode."""

from __future__ import annotations

import re

from flatline.readers.source._arguments import argument_at
from flatline.readers.source._resolve import Project
from flatline.readers.source._things import Thing
from flatline.readers.source._values import origins

NORMED = re.compile(
    r"(?:\w+/)?(?:tf_|gluon_|ssl_|swsl_|legacy_|ig_|cs|wide_|eca_?|se|sk|re|tv_)*(?:resnet|resnext|resnest|res2net|efficientnet"
    r"|mobilenet|mixnet|mnasnet|densenet|regnet|xception|inception|dla\d|dpn\d|hrnet|repvgg|ghostnet|senet|hardcorenas)"
)
DROPPED = re.compile(
    r"(?:[\w.-]+/)?(?:distil|xlm-|chinese-|bio|sci)?(?:bert|roberta|electra|gpt2|bart|t5|camembert|deberta)\b"
)
NAMED = {  # the parameter that is the name, and its place
    "timm.create_model": ("model_name", 0),
    "timm.models.create_model": ("model_name", 0),
    "torchvision.models.get_model": ("name", 0),
    "torch.hub.load": ("model", 1),
    "efficientnet_pytorch.EfficientNet.from_pretrained": ("model_name", 0),
    "efficientnet_pytorch.EfficientNet.from_name": ("model_name", 0),
}
ALWAYS = re.compile(
    r"torchvision\.models\.(?:segmentation\.(?:deeplab|fcn|lraspp)|video\.(?:r3d|mc3|r2plus1d))\w*"
    r"|segmentation_models_pytorch\.(?:Unet|UnetPlusPlus|FPN|Linknet|MAnet|DeepLabV3|DeepLabV3Plus|PAN)"
    r"|monai\.networks\.nets\.(?:DenseNet\w*|ResNet|resnet\d+)"
)
WORDS = re.compile(
    r"transformers\.(?P<kind>Auto|Bert|Roberta|DistilBert|XLMRoberta|Electra|Camembert|GPT2|Bart|T5|DebertaV2|Deberta)"
    r"(?:Model)?(?:For\w+|LMHead\w+)?\.from_pretrained"
)
SWITCHES = {"BatchNorm": re.compile("norm"), "Dropout": re.compile("drop|config")}  # options that may leave them out

PARTS = (
    (
        re.compile(r"torchvision\.models\.(wide_)?resne(x)?t\d+\w*"),
        {"conv1", "bn1", "layer1", "layer2", "layer3", "layer4", "fc"},
    ),
    (
        re.compile(r"torchvision\.models\.(vgg|densenet|mobilenet_v|efficientnet_|alexnet|convnext_)\w*"),
        {"features", "classifier"},
    ),
)


def parts_of(thing: Thing) -> set[str]:
    """The names of what a model of torchvision is made of; nothing for others."""
    return next((names for pattern, names in PARTS if pattern.fullmatch(thing.name)), set())


def ready_made(project: Project, thing: Thing) -> str:
    """``BatchNorm`` of ``timm.create_model("resnet50")``; nothing where the name is not known, or layers are chosen."""
    layer = _usual(project, thing) if thing.call is not None else ""
    options = [k.arg or "" for k in thing.call.keywords] if layer and thing.call is not None else []
    return "" if any(SWITCHES[layer].search(name) for name in options) else layer


def _usual(project: Project, thing: Thing) -> str:
    """What is in it, if no option of it says otherwise."""
    if ALWAYS.fullmatch(thing.name):
        return "BatchNorm"
    if (words := WORDS.fullmatch(thing.name)) is not None:
        return "Dropout" if words["kind"] != "Auto" or _is_called(project, thing, "", 0, DROPPED) else ""
    name, place = NAMED.get(thing.name, ("", -1))
    return "BatchNorm" if name and _is_called(project, thing, name, place, NORMED) else ""


def _is_called(project: Project, thing: Thing, name: str, place: int, known: re.Pattern[str]) -> bool:
    """The name of what is built is one of those that are known."""
    given = argument_at(thing.call, name, place) if thing.call is not None else None
    values = [getattr(each.node, "value", None) for each in origins(project, given, thing.use)]
    values = values or [getattr(project.constant(given, thing.use), "value", None)]
    return all(isinstance(each, str) and known.match(each) is not None for each in values)
