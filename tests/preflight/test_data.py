"""What is told of the batches that reach a model."""

import base64
import re
import struct
import zlib

import pytest
import torch
from torch import nn

from flatline.preflight import texts
from flatline.preflight.data import Data
from flatline.preflight.hearing import Call, Loss
from flatline.preflight.padded import padding_tail
from flatline.preflight.pictures import png


class Model(nn.Module):
    def forward(self, pixels, ids=None):
        return pixels


def seen(batches, targets):
    data = Data()
    for inputs, target in zip(batches, targets, strict=True):
        scores = torch.zeros(len(target), 3, requires_grad=True)
        call = Call(Model(), inputs, {}, None)
        data.add([call], [Loss("cross_entropy", scores, target, (), {})])
    return data, dict(data.lines())


def test_images_by_channel():
    torch.manual_seed(0)
    images = torch.randn(64, 3, 8, 8) * torch.tensor([1.0, 2.0, 0.5]).view(3, 1, 1) + 4
    images[0] = images[1]
    data, lines = seen([(images,)], [torch.randint(0, 3, (64,))])
    assert lines["input pixels"].startswith("64 × 3 × 8 × 8 float32, ")
    means, deviations = zip(*re.findall(r"([\d.]+) ± ([\d.]+)", lines["input pixels"]), strict=True)
    assert [round(float(mean)) for mean in means] == [4, 4, 4]
    assert [round(2 * float(deviation)) for deviation in deviations] == [2, 4, 1]
    assert lines["repeated"] == "1 of 64 samples stand a second time in their batch"
    assert len(data.pictures()) == 8


def test_columns_that_are_constant_and_numbers_that_are_not_finite():
    features = torch.randn(40, 12)
    features[:, 3] = 1.0
    features[0, 0] = float("nan")
    _, lines = seen([(features,)], [torch.zeros(40, dtype=torch.long)])
    assert "1 not finite" in lines["input pixels"]
    assert "1 of 12 columns constant" in lines["input pixels"]


def test_tokens_padding_and_ignored_labels():
    tokens = torch.randint(1, 50, (20, 10))
    tokens[::2, 6:] = tokens[1::4, 8:] = 0
    labels = torch.where(tokens == 0, -100, tokens)
    data, lines = seen([(torch.randn(20, 4), tokens)], [labels.flatten()])
    assert lines["input ids"].endswith("25% of them padding at the end of rows")
    assert lines["labels"] == "25.0% of them are -100, which no loss is taken of"
    assert data.first_tokens().equal(tokens[0])
    assert data.first_labels().equal(tokens[0][:6])


@pytest.mark.parametrize(("related", "said"), [(True, "is right on"), (False, "it finds none")])
def test_are_labels_related_to_inputs(related, said):
    torch.manual_seed(0)
    inputs = torch.randn(400, 8)
    labels = (inputs[:, 0] > 0).long() if related else torch.randint(0, 2, (400,))
    _, lines = seen(zip(inputs.split(40)), labels.split(40))
    assert said in lines["relation"]
    assert ("it finds none" in lines["relation"]) is not related


def test_padding_is_told_from_texts_that_end_alike():
    texts_of_one_length = torch.randint(1, 50, (20, 10))
    texts_of_one_length[:, -1] = 7  # the end of a sentence
    assert padding_tail(texts_of_one_length, set()) is None


@pytest.mark.parametrize("channels", [1, 3])
def test_a_picture_holds_the_numbers_of_its_image(channels):
    image = torch.arange(channels * 5 * 4).reshape(channels, 5, 4).float()
    data = base64.b64decode(png(image).removeprefix("data:image/png;base64,"))
    width, height, depth, colours = struct.unpack(">IIBB", data[16:26])
    assert (width, height, depth, colours) == (4, 5, 8, 2 if channels == 3 else 0)
    size = struct.unpack(">I", data[33:37])[0]
    rows = zlib.decompress(data[41 : 41 + size])
    pixels = [value for at in range(5) for value in rows[at * (4 * channels + 1) + 1 : (at + 1) * (4 * channels + 1)]]
    levels = (image.movedim(0, -1).flatten() / image.max() * 255).round().to(torch.uint8)
    assert pixels == levels.tolist()


def test_a_large_picture_with_bad_numbers_is_small():
    image = torch.full((3, 900, 700), float("nan"))
    assert len(png(image)) < 2000


# --------------------------------------------------------------------------- tokens as text


def test_tables_functions_and_tokenizers_decode():
    letters = {0: "a", 1: "b", 2: "c"}
    assert texts.decoded(texts._decoding(letters), [2, 0, 1]) == "cab"
    assert texts.decoded(texts._decoding(["the", "cat", "sat"]), [0, 1, 2]) == "the cat sat"

    def decode(tokens):
        return "".join(chr(97 + token) for token in tokens)

    class Tokenizer:
        encode = staticmethod(str.split)

    Tokenizer.decode = staticmethod(decode)

    assert texts.decoded(texts._decoding(decode), [0, 1]) == "ab"
    assert texts.decoded(texts._decoding(Tokenizer()), [0, 1]) == "ab"


def test_what_cannot_decode_is_passed_over():
    assert texts._decoding("text") is None
    assert texts._decoding({"a": 0}) is None
    assert texts.decoded(texts._decoding({0: "a"}), [5]) == ""


def test_an_input_without_rows():
    _, lines = seen([(torch.randn(8, 4), torch.empty(0, 4))], [torch.zeros(8, dtype=torch.long)])
    assert lines["input ids"] == "0 × 4 float32, empty"


def test_sparse_and_nested_inputs():
    nested = {"a": {"b": torch.randn(8, 4)}}
    _, lines = seen([(nested, torch.eye(8).to_sparse())], [torch.zeros(8, dtype=torch.long)])
    assert lines["input pixels.a.b"].startswith("8 × 4 float32")
    assert "input ids" not in lines


def test_of_many_inputs_a_few_are_told():
    class Wide(nn.Module):
        def forward(self, **columns):
            return columns

    data = Data()
    columns = {f"column{at}": torch.randn(8, 2) for at in range(41)}
    data.add([Call(Wide(), (), columns, None)], [])
    lines = data.lines()
    assert sum(label.startswith("input ") for label, _ in lines) == 12
    assert dict(lines)["more inputs"] == "29 not shown: column12, column13, column14, column15, …"
