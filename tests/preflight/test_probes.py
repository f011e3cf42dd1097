"""What is asked of a model, and what is proven by the answers."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from flatline.events import FutureProbed, InfluenceProbed, PaddingProbed, SamplesProbed, WeightsSevered
from flatline.preflight.hearing import Call, Hearing, Loss, Mode
from flatline.preflight.padded import padding_tail
from flatline.preflight.probes import Known, Probes

torch.manual_seed(0)


def asked(model, *given, targets=(), known=None, training=True, kind=None, **named):
    """All answers, or the one of a kind."""
    losses = [Loss("mse_loss" if t.is_floating_point() else "cross_entropy", None, t, (), {}) for t in targets]
    call = Call(model, given, named, None, 1, Mode((training,) * len(list(model.modules()))))
    said = list(Probes(call, losses, 24, known).ask())
    return said if kind is None else next((each for each in said if isinstance(each, kind)), said)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


# --------------------------------------------------------------------------- samples


class Recurrent(nn.Module):
    def __init__(self, tokens=0, **options):
        super().__init__()
        self.embed = nn.Embedding(tokens, 6) if tokens else nn.Identity()
        self.rnn, self.head = nn.LSTM(6, 16, **options), nn.Linear(16, tokens or 1)

    def forward(self, x):
        return self.head(self.rnn(self.embed(x))[0])


def next_tokens(rows=32, length=25, tokens=20):
    begun, by = torch.randint(0, tokens, (rows, 1)), torch.randint(1, 5, (rows, 1))
    ids = (torch.arange(length) * by + begun) % tokens
    return ids[:, :-1], ids[:, 1:]


def test_time_first_or_a_batch_it_cannot_tell():
    probed = asked(Recurrent(), torch.randn(24, 16, 6), targets=[torch.randn(24, 16, 1)], kind=SamplesProbed)
    assert probed.spread.effect > 0.1
    assert probed.reads_as_time
    assert not probed.proven


def test_a_size_that_was_drawn_is_of_samples():
    known, inputs, targets = Known(sizes={32}), torch.randn(32, 16, 6), [torch.randn(32)]
    probed = asked(Recurrent(), inputs, targets=targets, known=known, kind=SamplesProbed)
    assert probed.proven
    assert probed.own_target
    assert probed.reads_as_time


def test_it_may_be_the_second_dimension():
    known = Known(sizes={16})
    probed = asked(
        Recurrent(), torch.randn(24, 16, 6), targets=[torch.randn(24, 16, 1)], known=known, kind=SamplesProbed
    )
    assert probed.proven
    assert probed.spread.effect < 1e-4


def test_labels_along_the_second_dimension_prove_the_first():
    ids, labels = next_tokens()
    probed = asked(Recurrent(20), ids, targets=[labels.reshape(-1)], kind=SamplesProbed)
    assert probed.proven
    assert probed.own_target
    assert probed.spread.kind == "LSTM"


class Flat(Recurrent):
    """One row for every position of every sample, sample by sample."""

    def forward(self, x):
        return super().forward(x).flatten(0, 1)


class FlatInTime(Flat):
    """The same, position by position, of batches whose samples come first."""

    def forward(self, x):
        return super().forward(x.transpose(0, 1))


def test_rows_of_all_positions():
    known, inputs, targets = Known(sizes={32}), torch.randn(32, 16, 6), [torch.randn(512, 1)]
    mixed = asked(Flat(), inputs, targets=targets, known=known, kind=SamplesProbed)
    assert mixed.spread.effect > 0.1
    assert mixed.order_matters
    for model in (Flat(batch_first=True), FlatInTime()):
        assert asked(model, inputs, targets=targets, known=known, kind=SamplesProbed).spread.effect == 0.0


def test_labels_that_are_mixed_alike():
    class Mixed(nn.Linear):
        def forward(self, x):
            return super().forward(0.7 * x + 0.3 * x.roll(1, 0))

    labels, known = torch.randint(0, 3, (40,)), Known(sizes={40})
    inputs = torch.randn(40, 8)
    mixed = asked(Mixed(8, 3), inputs, targets=[labels, labels.roll(1)], known=known, kind=SamplesProbed)
    alone = asked(Mixed(8, 3), inputs, targets=[labels], known=known, kind=SamplesProbed)
    assert (mixed.proven, alone.proven) == (False, True)


# --------------------------------------------------------------------------- the future


class Tagger(nn.Module):
    def __init__(self, tokens=20, **options):
        super().__init__()
        self.embed, self.rnn = nn.Embedding(tokens, 8), nn.GRU(8, 8, batch_first=True, **options)
        self.head = nn.LazyLinear(tokens)
        self(torch.zeros(1, 1, dtype=torch.long))

    def forward(self, ids):
        return self.head(self.rnn(self.embed(ids))[0])


@pytest.mark.parametrize("both", [True, False])
def test_next_tokens(both):
    ids, labels = next_tokens()
    probed = asked(Tagger(bidirectional=both), ids, targets=[labels.reshape(-1)], kind=FutureProbed)
    assert probed.next_token
    assert (probed.spread.effect > 0.01) == both


def test_labels_that_scores_are_picked_by():
    ids, labels = next_tokens()
    probed = asked(Tagger(bidirectional=True), ids, known=Known(gathered=[labels]), kind=FutureProbed)
    assert probed.next_token


@pytest.mark.parametrize("rare", [0.004, 0.02])
def test_nearly_everything_is_nothing(rare):
    events = (torch.rand(64, 128) < rare).long()
    labels = torch.zeros_like(events)
    labels[:, 1:-1] = events[:, :-2] * events[:, 2:]
    said = asked(Tagger(2, bidirectional=True), events, targets=[labels])
    assert "future: no label is the next element of a sequence" in said


def test_numbers_that_come_back_are_an_autoencoder():
    inputs = torch.randn(8, 16, 6)
    assert "future: no label is the next element of a sequence" in asked(Recurrent(), inputs, targets=[inputs])


@pytest.mark.parametrize("shifts", [True, False])
def test_labels_that_are_the_input(shifts):
    class Shifting(Tagger):
        def forward(self, ids):
            return super().forward(torch.nn.functional.pad(ids[:, :-1], (1, 0)) if shifts else ids)

    ids, _ = next_tokens()
    probed = asked(Shifting(), ids, targets=[ids], kind=FutureProbed)
    assert probed.own_token != shifts
    assert probed.spread.effect < 1e-4


def test_one_vector_of_the_sentence():
    class Sentences(Tagger):
        def __init__(self):
            super().__init__()
            self.encode, self.code = nn.GRU(8, 8, batch_first=True), nn.Linear(8, 8)

        def forward(self, ids):
            if not hasattr(self, "encode"):
                return super().forward(ids)
            e = self.embed(ids)
            return self.head(self.rnn(e, self.code(self.encode(e)[1]))[0])

    ids, labels = next_tokens(length=11)
    probed = asked(Sentences(), ids, targets=[labels.reshape(-1)], kind=FutureProbed)
    assert probed.spread.effect > 1e-3
    assert probed.summary


def test_what_is_copied_is_seen_whole():
    class Copying(nn.Module):
        def __init__(self):
            super().__init__()
            self.source, self.said = Tagger(bidirectional=True), Tagger()

        def forward(self, source, said):
            return self.said(said) + self.source(source).mean(1, keepdim=True)

    ids, labels = next_tokens()
    whole = torch.cat([ids, labels[:, -1:]], 1)
    probed = asked(Copying(), whole, ids, targets=[labels], kind=FutureProbed)
    assert probed.length == 24
    assert probed.spread.effect < 1e-4


# --------------------------------------------------------------------------- padding


def filled(rows=32, length=20, pad=0):
    ids, lengths = torch.randint(1, 40, (rows, length)), torch.randint(4, length, (rows,))
    ids[torch.arange(length) >= lengths[:, None]] = pad
    return ids, lengths


class Mean(nn.Module):
    def __init__(self, padding=None):
        super().__init__()
        self.embed, self.head = nn.Embedding(41, 8, padding_idx=padding), nn.Linear(8, 1)

    def forward(self, ids, told=None):
        return self.head(self.embed(ids).mean(1))


def test_padding_that_nothing_names():
    ids, _ = filled(pad=40)
    probed = asked(Mean(), ids, kind=PaddingProbed)
    assert probed.spread.effect > 0.1
    assert not probed.proven


@pytest.mark.parametrize(
    ("told", "known"),
    [
        (lambda ids, lengths: lengths, None),
        (lambda ids, lengths: ids == 40, None),
        (lambda ids, lengths: (ids != 40).float()[:, None, None], None),
        (lambda ids, lengths: None, Known(padded={(32, 20)})),
    ],
    ids=["lengths", "mask", "mask of attention", "pad_sequence"],
)
def test_padding_that_the_script_tells(told, known):
    ids, lengths = filled(pad=40)
    assert asked(Mean(), ids, told(ids, lengths), known=known, kind=PaddingProbed).proven


def test_padding_by_an_index():
    assert asked(Mean(padding=0), filled()[0], kind=PaddingProbed).proven


class OneLength(nn.Module):
    """Takes 20 positions and no others."""

    def __init__(self, how, padding=None):
        super().__init__()
        self.how, self.embed, self.place = (
            how,
            nn.Embedding(41, 16, padding_idx=padding),
            nn.Parameter(torch.randn(1, 20, 16)),
        )
        self.attend, self.head = nn.MultiheadAttention(16, 2, batch_first=True), nn.Linear(16, 3)

    def forward(self, ids):
        real = ids != 0
        mask = {"masked": ~real, "inverted": real, "open": None}[self.how]
        x = self.embed(ids) + self.place
        x = x + self.attend(x, x, x, key_padding_mask=mask, need_weights=False)[0]
        return self.head((x * real[..., None]).sum(1) / real.sum(1, keepdim=True))


@pytest.mark.parametrize("how", ["inverted", "open"])
def test_padding_that_cannot_be_cut_off_is_overwritten(how):
    probed = asked(OneLength(how), filled()[0], kind=PaddingProbed)
    assert probed.overwritten
    assert probed.spread.layer == "attend"
    assert probed.spread.effect > 0.1
    assert probed.half > 0.05 * probed.spread.effect
    assert probed.proven  # it is compared with 0


def test_near_miss_padding_that_cannot_be_cut_off_is_masked():
    assert asked(OneLength("masked"), filled()[0], kind=PaddingProbed).spread.effect < 1e-4


def test_near_miss_vectors_of_padding_are_zero():
    said = asked(OneLength("open", padding=0), filled()[0])
    assert "padding: the model takes sequences of one length only" in said


def test_batches_as_long_as_their_longest_row():
    ids, _ = filled()
    ids[0] = 7
    model = Mean()
    known = Known(lengths={(id(model), 0): {18, 19, 20}})
    assert asked(model, ids, known=known, kind=PaddingProbed).proven


def pixels():
    board = torch.zeros(32, 8, 8, dtype=torch.long)
    for at, row in enumerate(torch.randint(0, 5, (32,)).tolist()):
        board[at, row : row + 3, 2:5] = torch.randint(8, 16, (3, 3))
    return board.reshape(32, 64)


@pytest.mark.parametrize(
    "tokens",
    [
        pixels(),
        torch.randint(0, 6, (64, 10)) * (torch.rand(64, 10) < 0.6),
        torch.randint(0, 4, (64, 12)).sort(1).values,
        torch.where(torch.arange(30) < torch.randint(5, 25, (64, 1)), *torch.randint(0, 4, (2, 64, 1))),
    ],
    ids=["pixels", "table", "sorted", "regimes"],
)
def test_near_miss_padding_is_nowhere_else(tokens):
    assert padding_tail(tokens, {0, None}) is None


def test_padding_is_at_the_end_alone():
    ids, lengths = filled()
    tail = padding_tail(ids, set())
    assert tail is not None
    assert torch.equal(tail, 20 - lengths)


class Masked(nn.Module):
    def __init__(self, *, inverted):
        super().__init__()
        self.embed, self.place, self.inverted = nn.Embedding(40, 16, padding_idx=0), nn.Embedding(20, 16), inverted
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.encode, self.head = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.Linear(16, 3)

    def forward(self, ids):
        real = ids != 0
        hidden = self.encode(
            self.embed(ids) + self.place(torch.arange(ids.shape[1])),
            src_key_padding_mask=real if self.inverted else ~real,
        )
        return self.head((hidden * real[..., None]).sum(1) / real.sum(1, keepdim=True))


def test_a_mask_the_wrong_way_round():
    """Rows without padding are masked whole, which torch's shortcut of eval mode makes nan of."""
    tokens, _ = filled()
    tokens[0] = torch.randint(1, 30, (tokens.shape[1],))
    probed = asked(Masked(inverted=True), tokens, targets=[torch.zeros(32).long()], kind=PaddingProbed)
    assert probed.spread.effect > 0.01
    probed = asked(Masked(inverted=False), tokens, targets=[torch.zeros(32).long()], kind=PaddingProbed)
    assert probed.spread.effect < 1e-4


def test_nan_is_an_answer_of_its_own():
    class Inverted(Mean):
        def forward(self, ids, mask):
            hidden = self.embed(ids)
            scores = (hidden @ hidden.mT).masked_fill(mask[:, None], float("-inf"))
            return self.head((scores.softmax(2) @ hidden)[:, 0])

    ids, _ = filled()
    assert "padding: Inverted makes nan of it" in asked(Inverted(0), ids, ids != 0)


# --------------------------------------------------------------------------- inputs


class Seeing(nn.Module):
    def __init__(self, *, prior=False, gate=False):
        super().__init__()
        self.see, self.read = nn.Linear(12, 8), nn.EmbeddingBag(20, 8)
        self.prior, self.gate = prior, nn.Parameter(torch.zeros(1)) if gate else 1.0

    def forward(self, image, ids):
        seen = self.see(image.float().mean((2, 3)).repeat(1, 4))
        return self.read(ids) + (0 if self.prior and not self.training else self.gate) * seen


IMAGES, IDS = torch.randn(32, 3, 8, 8), torch.randint(0, 20, (32, 6))


def effects(probed):
    return {each.name: each.effect for each in probed.inputs}


def test_an_image_that_only_the_training_branch_reads():
    assert effects(asked(Seeing(prior=True), IMAGES, IDS, kind=InfluenceProbed))["image"] > 0.01
    unread = asked(Seeing(prior=True), IMAGES, IDS, training=False, kind=InfluenceProbed)
    assert effects(unread)["image"] == 0


def test_keywords_in_another_order():
    probed = asked(Seeing(), ids=IDS, image=IMAGES, kind=InfluenceProbed)
    assert [(each.name, each.kind) for each in probed.inputs] == [("ids", "tokens"), ("image", "image")]


def test_bytes_are_an_image_too():
    probed = asked(Seeing(), (IMAGES * 50 + 100).to(torch.uint8), IDS, kind=InfluenceProbed)
    assert probed.inputs[0].kind == "image"


@pytest.mark.parametrize("held", [True, False])
def test_a_gate_that_waits(held):
    model = Seeing(gate=True)
    known = Known(waiting={id(model.gate)} if held else set())
    probed = asked(model, IMAGES, IDS, known=known, kind=InfluenceProbed)
    assert effects(probed)["image"] == 0
    assert probed.waiting == held


def test_a_loss_alone_shows_its_input():
    class Scored(Mean):
        def forward(self, ids):
            return super().forward(ids).square().mean()

    assert effects(asked(Scored(), IDS, kind=InfluenceProbed))["ids"] > 1e-4


# --------------------------------------------------------------------------- weights


class Codes(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.book, self.head = nn.Linear(6, 8), nn.Embedding(8, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.book(self.encode(x).argmax(-1)))


class Beside(Codes):
    def forward(self, x):
        return super().forward(x) + x[:, :2] * self.head.bias


class Taught(Codes):
    def forward(self, x):
        hidden = self.encode(x).detach()
        return self.head(self.book.weight[:1] + x.mean(1, keepdim=True)) - hidden[:, :2]


def severed(model, *reached):
    front = {id(weight): 24 for weight in model.encode.parameters()}
    known = Known(severed=front, reached={id(w) for w in model.parameters()} - set(front), asked={id(model): {0}})
    return asked(model, torch.randn(16, 6), known=known, kind=WeightsSevered)


def test_weights_behind_an_argmax():
    probed = severed(Codes())
    assert (probed.parts, probed.tensors, probed.steps) == (("encode",), 2, 24)


@pytest.mark.parametrize("model", [Beside(), Taught()], ids=["another way", "a teacher"])
def test_near_miss_the_gradient_finds_the_data(model):
    assert not isinstance(severed(model), WeightsSevered)


def test_near_miss_no_gradient_came_to_that_output():
    model = Codes()
    front = {id(weight): 24 for weight in model.encode.parameters()}
    known = Known(severed=front, reached={id(model.head.bias)}, asked={id(model): set()})
    assert not isinstance(asked(model, torch.randn(16, 6), known=known, kind=WeightsSevered), WeightsSevered)


# --------------------------------------------------------------------------- as the script calls it


def test_under_the_scripts_autocast(monkeypatch):
    monkeypatch.setattr(nn.Module, "__call__", nn.Module.__call__)
    for name in ("cross_entropy", "mse_loss"):
        monkeypatch.setattr(functional, name, getattr(functional, name))

    class Strict(nn.Linear):
        def forward(self, x):
            made = super().forward(x)
            assert made.dtype == torch.bfloat16
            return made

    hearing, model = Hearing(), Strict(6, 2)
    hearing.attach()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(torch.randn(32, 6))
    (call,) = hearing.step()[0]
    assert isinstance(next(Probes(call, [], 24).ask()), InfluenceProbed)
