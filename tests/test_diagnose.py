"""``flatline diagnose`` as people call it."""

from __future__ import annotations

import json
import random

import pytest

from flatline.cli import main
from flatline.readers._settings import classes_in
from flatline.rules import all_rules

HEADER = "epoch,step,train_loss,val_loss,lr\n"


def curve(*, sick=False, steps=300):
    """Rows of a run that learns; a sick one climbs far above its start."""
    draw, rows = random.Random(0), []
    for step in range(steps):
        loss = 0.5 + 3 * 0.98**step + draw.gauss(0, 0.02) + (max(0, step - 200) ** 2 / 100 if sick else 0)
        rows.append(
            f"{step // 30},{step},{loss:.5f},{f'{loss + 0.05:.5f}' if step % 30 == 29 else ''},{1e-3 * (1 - step / 400):.6f}\n"
        )
    return HEADER + "".join(rows)


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, sick in (("good", False), ("bad", True)):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "metrics.csv").write_text(curve(sick=sick))
    return tmp_path


def test_a_healthy_run(runs, capsys):
    assert main(["diagnose", "runs/good", "--fail-on", "warning"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "runs/good · CSV · 4 curves to step 299"
    assert out[1] == "  epoch = epoch · train loss = train_loss · val loss = val_loss · learning rate = lr"
    assert out[-1].startswith("flatline: 0 findings · ")
    assert len(out) == 3


def test_a_sick_run(runs, capsys):
    assert main(["diagnose", "runs/bad/metrics.csv", "--fail-on", "warning"]) == 1
    assert "C1 loss-diverges" in capsys.readouterr().out
    assert main(["diagnose", "runs/bad", "--ignore", "C", "--fail-on", "warning"]) == 0
    assert main(["diagnose", "runs/bad"]) == 0


def test_several_runs_are_a_table(runs, capsys):
    assert main(["diagnose", "runs"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in out[:3]] == ["run", "runs/bad", "runs/good"]
    assert out[2].endswith("none")
    assert "Seen    runs/bad: train_loss" in "\n".join(out)


def test_json(runs, capsys):
    main(["diagnose", "runs/bad", "runs/good", "--format", "json"])
    told = json.loads(capsys.readouterr().out)
    assert (told["schema"], told["run"]["runs"], told["notes"]) == (1, 2, [])
    unchecked = {rule["code"]: rule["reason"] for rule in told["not_checked"]}
    assert unchecked["C2"] == "the number of classes is not known"
    assert unchecked["C7"] == "too short: 10 points of the val loss, 14 are needed"
    assert {"C1", "C4", "C10", "C11"}.isdisjoint(unchecked)
    (finding,) = told["findings"]
    assert (finding["code"], finding["where"], finding["evidence"]["run"]) == ("C1", None, "runs/bad")
    main(["diagnose", "runs/good", "--format", "json"])
    told = json.loads(capsys.readouterr().out)
    assert (told["run"]["train_loss"], told["run"]["source"]) == ("train_loss", "runs/good/metrics.csv")
    assert set(told["checked"]) <= {rule.code for rule in all_rules()}


@pytest.mark.parametrize("form", ["text", "json", "sarif", "github"])
def test_output(runs, capsys, form):
    assert main(["diagnose", "runs/bad", "--format", form, "--output", "report"]) == 0
    assert "C1" in (runs / "report").read_text()
    assert capsys.readouterr().out == ""


def test_the_curves_are_chosen(runs, capsys):
    assert main(["diagnose", "runs/good", "--map", "loss=val_loss", "--verbose"]) == 0
    out = capsys.readouterr().out
    assert "train loss = val_loss" in out
    assert "not recognised: train_loss" in out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nowhere"], "nowhere: No such file"),
        (["empty"], "no log was found in empty"),
        (["runs", "--map", "loss"], "--map must be ROLE=NAME"),
        (["runs", "--map", "colour=red"], "--map must be ROLE=NAME"),
        (["runs", "--map", "loss=red"], "no curve is named 'red'; there are epoch, lr, train_loss, val_loss"),
        (["runs", "--select", "Q9"], "there is no rule 'Q9'"),
        (["runs", "--output", "no/where"], "there is no directory"),
    ],
)
def test_wrong_input_is_one_line(runs, capsys, arguments, told):
    (runs / "empty").mkdir()
    assert main(["diagnose", *arguments]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_names_from_logs_are_made_harmless(runs, capsys):
    (runs / "evil\x1b[31m.csv").write_text("step,loss,\x1b]0;title\x07lr\n1,2,0.1\n2,1,0.1\n3,1,0.1\n")
    assert main(["diagnose", "."]) == 0
    assert main(["diagnose", "evil\x1b[31m.csv", "--verbose"]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_without_a_known_curve_nothing_is_checked(runs, capsys):
    (runs / "odd.csv").write_text("step,fitness\n" + "".join(f"{step},{step}\n" for step in range(50)))
    assert main(["diagnose", "odd.csv"]) == 0
    out = capsys.readouterr().out
    assert "no curve was recognised; --map loss=NAME says which is the loss" in out
    assert "not recognised: fitness" in out
    assert "0 rules checked" in out
    assert "flatline diagnose --verbose says why" in out
    assert main(["diagnose", "odd.csv", "--map", "loss=fitness"]) == 0
    assert "train loss = fitness" in capsys.readouterr().out


def test_damage_is_named_and_the_rest_judged(runs, capsys):
    (runs / "runs/broken").mkdir()
    (runs / "runs/broken/events.out.tfevents.1.host").write_bytes(b"")
    (runs / "runs/broken/mlflow.db").write_bytes(b"SQLite format 3\0" + bytes(500))
    (runs / "runs/broken/trainer_state.json").write_text(
        '{"global_step": 3,\n "log_history": [{"loss": 1.0, "step": 1}, {"lo'
    )
    assert main(["diagnose", "runs"]) == 0
    out = capsys.readouterr().out
    assert "runs/broken/events.out.tfevents.1.host: empty" in out
    assert "runs/broken/mlflow.db: no MLflow database as its name promises" in out
    assert "trainer_state.json: damaged" in out
    assert "runs/good" in out


def test_follow_tells_every_finding_once(runs, capsys, monkeypatch):
    log, looks = runs / "runs/good/metrics.csv", []

    def goes_on(seconds):
        looks.append(seconds)
        log.write_text(curve(sick=True))
        if len(looks) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr("flatline.commands.diagnose.sleep", goes_on)
    assert main(["diagnose", "runs/good", "--follow", "--fail-on", "warning"]) == 1
    told = capsys.readouterr()
    assert (len(looks), told.err.count("C1 loss-diverges")) == (4, 1)
    assert told.err.startswith("flatline: C1 loss-diverges · warning · step 299: runs/good: ")
    assert told.out.count("C1 loss-diverges") == 1


def _rewards(folder, name, level):
    (folder / name).mkdir(parents=True)
    lines = ["step,episode_reward", *(f"{i},{level * i / 40 + i % 3 * 0.01}" for i in range(40))]
    (folder / name / "progress.csv").write_text("\n".join(lines))


def test_runs_that_differ_in_their_seed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for seed in range(3):
        _rewards(tmp_path, f"runs/ppo_seed{seed}", 10 + seed)
        _rewards(tmp_path, f"runs/sac_seed{seed}", 11 + seed)
    main(["diagnose", "runs", "--format", "json", "--hints"])
    told = json.loads(capsys.readouterr().out)
    (found,) = [finding for finding in told["findings"] if finding["code"] == "R6"]
    assert (found["severity"], found["evidence"]["groups"], found["evidence"]["fewest"]) == ("hint", 2, 3)
    assert "sac_seed*" in found["message"]
    assert told["run"]["runs"] == 6


def test_groups_of_seeds_are_a_table(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for seed in range(3):
        _rewards(tmp_path, f"runs/ppo_seed{seed}", 10 + seed)
        _rewards(tmp_path, f"runs/sac_seed{seed}", 21 + seed)
    _rewards(tmp_path, "runs/td3_seed0", 5)
    main(["diagnose", "runs"])
    lines = capsys.readouterr().out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("same but for the seed"))
    assert lines[at].split("  ")[-1] == "95 % interval"
    assert [line.split()[:2] for line in lines[at + 1 : at + 4]] == [
        ["runs/sac_seed*", "3"],
        ["runs/ppo_seed*", "3"],
        ["runs/td3_seed*", "1"],
    ]
    assert lines[at + 3].endswith("one seed has none")
    assert " to " in lines[at + 1]


def test_groups_of_seeds_without_a_reward_are_compared_by_what_there_is(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, top in (("big_seed0", 1), ("big_seed1", 1), ("small_seed0", 3), ("small_seed1", 3)):
        (tmp_path / "runs" / name).mkdir(parents=True)
        lines = ["step,train_loss", *(f"{i},{top + 2.0 / (i + 1)}" for i in range(40))]
        (tmp_path / "runs" / name / "log.csv").write_text("\n".join(lines))
    main(["diagnose", "runs"])
    lines = capsys.readouterr().out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("same but for the seed"))
    assert "final train loss, IQM" in lines[at]
    assert [line.split()[0] for line in lines[at + 1 : at + 3]] == ["runs/big_seed*", "runs/small_seed*"]


@pytest.mark.parametrize("names", [["lr_1", "lr_3"], ["ppo", "sac"], ["ppo-v1", "ppo-v2"]])
def test_runs_that_differ_in_something_else(names, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in names:
        _rewards(tmp_path, f"runs/{name}", 10)
    main(["diagnose", "runs", "--format", "json", "--hints"])
    told = json.loads(capsys.readouterr().out)
    assert "R6" not in [finding["code"] for finding in told["findings"]]
    assert {rule["code"]: rule["reason"] for rule in told["not_checked"]}["R6"].startswith("there are no runs")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.json", '{"num_labels": 10}'),
        ("config.json", '{"id2label": {"0": "a", "1": "b", "2": "c"}}'),
        ("hparams.yaml", "lr: 0.1\nnum_classes: 10\n"),
        ("config.yaml", "num_classes:\n    value: 10\n"),
    ],
)
def test_classes_are_read_from_settings_beside_the_log(name, text, tmp_path):
    (tmp_path / name).write_text(text)
    expected = 3 if "id2label" in text else 10
    assert classes_in([tmp_path / "metrics.csv"], [str(tmp_path)]) == expected


def test_classes_are_not_looked_for_elsewhere(tmp_path):
    inner = tmp_path / "runs"
    inner.mkdir()
    (tmp_path / "config.json").write_text('{"num_labels": 10}')
    (inner / "hparams.yaml").symlink_to(tmp_path / "config.json")
    assert classes_in([inner / "metrics.csv"], [str(inner)]) is None
    assert classes_in([inner / "metrics.csv"], [str(inner / "metrics.csv")]) is None


def test_settings_that_differ_say_nothing(tmp_path):
    (tmp_path / "config.json").write_text('{"num_labels": 10}')
    (tmp_path / "args.json").write_text('{"num_classes": 7}')
    assert classes_in([tmp_path / "metrics.csv"], [str(tmp_path)]) is None


def test_stuck_at_chance_by_the_settings(tmp_path, capsys):
    (tmp_path / "config.json").write_text('{"num_labels": 10}')
    rows = ["step,train_loss", *(f"{i},{2.3026 + (i * 37 % 11 - 5) * 0.004:.4f}" for i in range(2000))]
    (tmp_path / "metrics.csv").write_text("\n".join(rows))
    main(["diagnose", str(tmp_path), "--format", "json"])
    assert [found["code"] for found in json.loads(capsys.readouterr().out)["findings"]] == ["C2"]
