"""Seeds stand in every line, as docs/experiments.md promises, and what they are the seeds of was asked."""

from crossdraft.streams import WatchSummary
from crossdraft_lab import scenes
from crossdraft_lab.bench.experiments import alignment, streaming
from crossdraft_lab.bench.experiments.alignment import ACCEPTANCE, CAPTURE, AlignmentConfig, training
from crossdraft_lab.bench.experiments.record import Setting
from crossdraft_lab.bench.watch import StreamRun

SMALL = AlignmentConfig(rungs=("linear", "l6"), clips=3, validation_clips=2, test_clips=1, questions=2, learned=2)
TEST, TRAIN, VALIDATION = map(scenes.split_seeds, ("test", "train", "validation"))


def test_a_question_on_a_stream_has_the_scenes_of_the_stream(tmp_path, monkeypatch):
    earlier = []

    def watched(plan, tick, before):
        earlier.append(before)
        summary = WatchSummary(4, 2, 2, 2.0, 0, [0.1, 0.2], [0.2, 0.4], 8, 4)
        return {name: [StreamRun(summary, {0: (1,), 1: (2,)})] for name in ("glance", "target")}

    def rated(plan, rates, tick, before):
        assert (plan.seconds, plan.asked, before) == (2, (streaming.StreamingConfig().bench().questions[1],), 1)
        summary = WatchSummary(4, 4, 0, 2.0, 0, [0.1] * 4, [0.2] * 4, 8, 4)
        assert (plan.windowing.every_s, plan.fps) == (0.125, 24), "every third frame: windows are evenly spaced"
        return {name: [(rates[0], StreamRun(summary, {}))] for name in ("glance", "target")}

    monkeypatch.setattr(streaming, "run_watch", watched)
    monkeypatch.setattr(streaming, "run_rates", rated)
    config = streaming.StreamingConfig(seconds=3, questions=2, rate_seconds=2)
    assert streaming.units(config)[2:] == ["rates, question 0", "rates, question 1"]
    keys = ["question 0", "question 1", "rates, question 1"]
    found = list(streaming.measure(config, keys, Setting(None, tmp_path)))
    assert [unit.seeds for unit in found] == [tuple(TEST[:3])] * 2 + [tuple(TEST[:2])]
    assert earlier == [0, 1], "a question goes on behind the orders of those before"
    said = streaming.summarise(config, found).sure
    assert said.startswith("2 questions, one run of each method each")
    assert "all of one stream of 3 scenes: n counts questions, and no interval covers other streams." in said


def test_what_is_captured_and_trained_has_its_seeds(tmp_path, monkeypatch):
    commands = []
    monkeypatch.setattr(alignment, "run_command", lambda arguments: commands.append(arguments) or {})
    keys = [CAPTURE, training("linear"), training("l6")]
    found = {unit.key: unit.seeds for unit in alignment.measure(SMALL, keys, Setting(None, tmp_path))}
    assert found == {CAPTURE: (*TRAIN[:3], *VALIDATION[:2]), "train linear": (0,), "train l6": (0,)}
    assert sum("seed=0" in command for command in commands) == 2


def test_what_is_accepted_has_the_scenes_that_were_learned_and_asked():
    assert SMALL.seeds(ACCEPTANCE) == (TRAIN[0], TEST[0]), "two questions about each"
    assert AlignmentConfig().seeds(ACCEPTANCE) == (*TRAIN[: 1024 // 4], *TEST[:48])
