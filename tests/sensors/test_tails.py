import pytest
import torch
from torch import nn
from torch.nn import functional
from watching import seen

from flatline.events import LossComputed

LENGTHS = torch.tensor([3, 4, 5, 6, 7, 8])
ENDS = torch.arange(8)[None] >= LENGTHS[:, None]
STEPS = torch.arange(6 * 8 * 3).view(6, 8, 3).mul(0.37).sin()
LEVELS = STEPS.sum(-1)
FILLED, PADDED = STEPS.masked_fill(ENDS[..., None], 0.0), LEVELS.masked_fill(ENDS, -2.5)
RESTS = torch.arange(8)[None].expand(6, 8) == 1


def loss_of(inputs, targets, loss=functional.mse_loss, shape=(6, 8)):
    model = nn.Sequential(nn.Linear(3, 1))

    def run():
        loss(model(inputs).reshape(shape), targets.reshape(shape)).backward()

    (event,) = seen(run, LossComputed)
    return event


def test_near_miss_a_picture_and_itself():
    model = nn.Linear(3, 3)
    (event,) = seen(lambda: functional.mse_loss(model(FILLED), FILLED).backward(), LossComputed)
    assert event.target.padding_share == 0.0


SHAPES = {"rows of steps": (6, 8), "one column": (6, 8, 1), "flat": (48,)}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("loss", [functional.mse_loss, functional.smooth_l1_loss, functional.huber_loss])
def test_padded_steps_of_measured_targets(loss, shape):
    target = loss_of(FILLED, PADDED, loss, shape).target
    assert target.padding_share == pytest.approx(float(ENDS.float().mean()))
    assert (target.padding_value, target.padding_id) == (-2.5, None)


def test_steps_ahead_of_rows():
    target = loss_of(FILLED.transpose(0, 1), PADDED.T, shape=(8, 6)).target
    assert target.padding_share == pytest.approx(float(ENDS.float().mean()))


NEAR_MISSES = {
    "nothing is padded": (STEPS, LEVELS),
    "inputs alone end so": (FILLED, LEVELS),
    "targets alone end so": (STEPS, PADDED),
    "targets are at that value before, too": (FILLED, LEVELS.masked_fill(ENDS | RESTS, -2.5)),
    "inputs are at rest before, too": (STEPS.masked_fill((ENDS | RESTS)[..., None], 0.0), PADDED),
    "other lengths": (FILLED, LEVELS.masked_fill(ENDS.flip(0), -2.5)),
    "all rows are of one length": (STEPS.masked_fill((torch.arange(8) > 4)[None, :, None], 0.0), PADDED),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_miss_of_padded_steps(name):
    assert loss_of(*NEAR_MISSES[name]).target.padding_share == 0.0


def test_near_miss_a_mask_on_both():
    """Scores and targets are the same there: it dilutes the mean, and teaches nothing."""

    def masked(scores, targets):
        return functional.mse_loss(scores.masked_fill(ENDS, -2.5), targets)

    assert loss_of(FILLED, PADDED, masked).target.padding_share == 0.0


def test_near_miss_sum():
    assert loss_of(FILLED, PADDED, lambda *both: functional.mse_loss(*both, reduction="sum")).target.padding_share == 0


WORDS = torch.arange(8)[None] % 5 + 1 + torch.arange(6)[:, None] % 2


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.source, self.words, self.head = nn.Embedding(9, 4), nn.Embedding(9, 4), nn.Linear(4, 9)

    def forward(self, source, words):
        return self.head(self.words(words) + self.source(source).mean(1, keepdim=True))


SIDES = {
    "by place": lambda model, source, words: model(source, words),
    "by name": lambda model, source, words: model(source=source, words=words),
}


@pytest.mark.parametrize("call", SIDES.values(), ids=SIDES)
def test_padded_words_of_the_side_that_is_scored(call):
    """The source has other lengths; the decoder's words stand beside the targets."""
    model, words = Translator(), WORDS.masked_fill(ENDS, 0)
    source = torch.ones(6, 4, dtype=torch.long)

    def run(ignore):
        functional.cross_entropy(
            call(model, source, words).flatten(0, 1), words.flatten(), ignore_index=ignore
        ).backward()

    (event,) = seen(lambda: run(-1), LossComputed)
    assert (event.target.padding_id, event.target.padding_share) == (0, pytest.approx(float(ENDS.float().mean())))
    (event,) = seen(lambda: run(0), LossComputed)
    assert event.target.padding_share == 0.0


def test_padded_words_in_columns():
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9))
    words = WORDS.masked_fill(ENDS, 0).T.contiguous()

    def run():
        functional.cross_entropy(model(words).flatten(0, 1), words.flatten()).backward()

    (event,) = seen(run, LossComputed)
    assert event.target.padding_id == 0


RAIN = STEPS[..., 0].masked_fill(STEPS[..., 1] < 0, 0.0)  # dry at many steps
PULSES = (torch.arange(8)[None] < LENGTHS[:, None]).float()


def by_hand(given, targets, loss, extra):
    """A loop over a loader whose batches hold more than inputs and targets."""
    rows = torch.utils.data.TensorDataset(given, targets, *extra)
    model = nn.Sequential(nn.Unflatten(1, (1, 8)), nn.Conv1d(1, 4, 3, padding=1), nn.Conv1d(4, 1, 1), nn.Flatten())

    def run():
        for x, y, *_ in torch.utils.data.DataLoader(rows, 6):
            loss(model(x), y).backward()

    return [event.target for event in seen(run, LossComputed)]


WRITTEN = {
    "squares": lambda scores, y: ((scores - y) ** 2).mean(),
    "product": lambda scores, y: torch.square(y - scores).mean() + 0.0,
    "absolute": lambda scores, y: (y - scores).abs().mean(),
    "a function": functional.mse_loss,
}


@pytest.mark.parametrize("loss", WRITTEN.values(), ids=WRITTEN)
@pytest.mark.parametrize("told", [LENGTHS, (~ENDS).float()], ids=["lengths", "mask"])
@pytest.mark.parametrize("fill", [0.0, -99.9])
def test_the_batch_says_where_rows_end(loss, told, fill):
    """Inputs that are 0 on many real steps, too."""
    (target,) = by_hand(RAIN.masked_fill(ENDS, 0.0), LEVELS.add(7).masked_fill(ENDS, fill), loss, [told])
    assert target.padding_share == pytest.approx(float(ENDS.float().mean()))
    assert target.padding_value == pytest.approx(fill, abs=1e-2)


@pytest.mark.parametrize("loss", WRITTEN.values(), ids=WRITTEN)
def test_how_large_the_targets_are(loss):
    (target,) = by_hand(RAIN, LEVELS, loss, [])
    assert (target.low, target.high) == pytest.approx((float(LEVELS.min()), float(LEVELS.max())), abs=1e-2)


def test_steps_ahead_of_rows_by_lengths():
    model = nn.Linear(3, 1)
    steps = STEPS.masked_fill(ENDS[..., None] | RESTS[..., None], 0.0)

    def run():
        for x, y, _ in [next(iter(torch.utils.data.DataLoader([(steps.transpose(0, 1), PADDED.T, LENGTHS)], None)))]:
            ((model(x).squeeze(-1) - y) ** 2).mean().backward()

    (event,) = seen(run, LossComputed)
    assert event.target.padding_value == -2.5


SOUND = {
    "no lengths": (RAIN.masked_fill(ENDS, 0.0), PADDED, WRITTEN["squares"], []),
    "other whole numbers": (RAIN.masked_fill(ENDS, 0.0), PADDED, WRITTEN["squares"], [LENGTHS.flip(0)]),
    "inputs go on": (RAIN, PADDED, WRITTEN["squares"], [LENGTHS]),
    "targets go on": (RAIN.masked_fill(ENDS, 0.0), LEVELS, WRITTEN["squares"], [LENGTHS]),
    "pulses that are the inputs": (PULSES, LEVELS.masked_fill(ENDS, 0.0), WRITTEN["squares"], []),
    "a sum": (RAIN.masked_fill(ENDS, 0.0), PADDED, lambda s, y: ((s - y) ** 2).sum() / 33, [LENGTHS]),
    "a mask": (RAIN.masked_fill(ENDS, 0.0), PADDED, lambda s, y: ((s - y) ** 2)[~ENDS].mean(), [LENGTHS]),
    "masked scores": (RAIN.masked_fill(ENDS, 0.0), LEVELS.masked_fill(ENDS, 0.0),
                      lambda s, y: ((s.masked_fill(ENDS, 0.0) - y) ** 2).mean(), [LENGTHS]),
    "nothing is padded": (RAIN, LEVELS, WRITTEN["squares"], [LENGTHS]),
}  # fmt: skip


@pytest.mark.parametrize("name", SOUND)
def test_near_miss_of_lengths(name):
    assert not any(target.padding_share for target in by_hand(*SOUND[name]))


def test_measured_rows_without_lengths():
    (target,) = by_hand(STEPS[..., 1].masked_fill(ENDS, 0.0), PADDED, WRITTEN["squares"], [])
    assert target.padding_value == -2.5


ITEMS = [(RAIN[row], LEVELS[row, : int(LENGTHS[row])], LENGTHS[row]) for row in range(len(RAIN))]


def in_one(items):
    before, after, lengths = zip(*items, strict=True)
    return torch.stack(before), nn.utils.rnn.pad_sequence(after, batch_first=True), torch.stack(lengths)


class AsTheyAre:
    def __call__(self, items):
        return RAIN, LEVELS.masked_fill(ENDS, 0.0), LENGTHS


def foretold(collate):
    """What comes, from what was: the inputs know of no ends."""
    model = nn.Linear(RAIN.shape[1], RAIN.shape[1])

    def run():
        for before, after, _ in torch.utils.data.DataLoader(ITEMS, len(ITEMS), collate_fn=collate):
            functional.smooth_l1_loss(model(before)[:, : after.shape[1]], after, reduction="none").mean().backward()

    (event,) = seen(run, LossComputed)
    return event.target


def test_a_function_that_fills_the_rows_up():
    assert foretold(in_one).padding_value == 0.0


def test_near_miss_rows_that_end_by_themselves():
    """Nothing shows that these zeros are no numbers of the data's."""
    assert foretold(AsTheyAre()).padding_value is None
