"""A capture is whole or can be gone on with, knows what it needs, and knows its own."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from crossdraft.errors import CrossdraftError
from crossdraft_lab.train.capture import run as module
from crossdraft_lab.train.capture.plan import CaptureIndex, CapturePlan, estimate_disk, format_size
from crossdraft_lab.train.capture.recorder import CaptureComparison, FeatureRecorder, InterleavedRecorder
from crossdraft_lab.train.capture.run import CaptureReport, capture
from crossdraft_lab.train.capture.shard import CapturedAnswer
from crossdraft_lab.train.capture.sources import PromptedClip
from crossdraft_lab.train.capture.store import CaptureStore
from crossdraft_lab.train.core.provenance import sha256
from tests.train.capture.helpers import SPEC, FixedSource, some_clips, zoo_plan, zoo_target


class Stopped(Exception):
    """Somebody pulled the plug."""


class Mortal(FeatureRecorder):
    """Records so many groups of clips and no more."""

    left = 3

    def record(self, clips: Sequence[PromptedClip]) -> list[list[CapturedAnswer]]:
        if not self.left:
            raise Stopped
        self.left -= 1
        return super().record(clips)


def recorder(plan: CapturePlan, kind: type[FeatureRecorder] = FeatureRecorder) -> FeatureRecorder:
    """Without memory: a shard is then the same bytes whenever it is captured."""
    return kind(plan.target, plan.spec, plan.batch, learns=False)


def run(folder: Path, plan: CapturePlan) -> tuple[CaptureIndex, CaptureReport]:
    return capture(folder, plan, plan.resume(folder), recorder(plan), lambda: None)


def shards(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}


def test_shards_of_whole_clips_and_a_report(tmp_path: Path) -> None:
    plan, ticks = zoo_plan(FixedSource(some_clips(5, prompts=3))), []
    index, report = capture(tmp_path, plan, plan.resume(tmp_path), recorder(plan), lambda: ticks.append(1))
    assert [(entry.clips, entry.answers) for entry in index.shards] == [(2, 6), (2, 6), (1, 3)]
    assert sum(ticks) == report.clips == 5
    assert report.answers == len(CaptureStore.open(tmp_path)) == 15
    assert report.tokens == sum(len(tokens) for tokens in CaptureStore.open(tmp_path).answer_tokens())
    assert report.bytes == sum(len(content) for content in shards(tmp_path).values())
    assert report.writing_s + report.reading_s + report.filing_s <= report.seconds
    assert "15 answers about 5 clips" in report.sentence()
    CaptureStore.open(tmp_path).check()


def test_clips_with_more_prompts_than_fit_a_batch_stay_whole(tmp_path: Path) -> None:
    clips = some_clips(2, prompts=7)
    run(tmp_path / "wide", zoo_plan(FixedSource(clips), batch=8))
    run(tmp_path / "narrow", zoo_plan(FixedSource(clips), batch=3))
    wide, narrow = CaptureStore.open(tmp_path / "wide"), CaptureStore.open(tmp_path / "narrow")
    assert wide.index.bytes == narrow.index.bytes  # the first piece is there once
    for a, b in zip(wide.answer_tokens(), narrow.answer_tokens(), strict=True):
        assert torch.equal(a, b)


def test_an_interrupted_capture_resumes_behind_its_last_whole_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GROUP", 1)  # a clip at a time
    plan = zoo_plan(FixedSource(some_clips(6)), batch=3)
    run(tmp_path / "unbroken", plan)
    broken = tmp_path / "broken"
    with pytest.raises(Stopped):
        capture(broken, plan, plan.resume(broken), recorder(plan, Mortal), lambda: None)
    assert [path.name for path in sorted(broken.iterdir())] == ["index.json", "shard-00000.safetensors"]
    assert len(CaptureStore.open(broken)) == 6
    index, report = run(broken, plan)
    assert report.clips == 4
    assert len(index.provenance) == 2
    assert shards(broken) == shards(tmp_path / "unbroken")
    again = run(broken, plan)[1]
    assert (again.clips, again.answers) == (0, 0)


@pytest.mark.parametrize("harm", ["missing", "cut off"])
def test_a_capture_with_a_broken_shard_is_mended_by_the_same_command(tmp_path: Path, harm: str) -> None:
    plan = zoo_plan(FixedSource(some_clips(6)))
    run(tmp_path, plan)
    whole = shards(tmp_path)
    path = tmp_path / "shard-00001.safetensors"
    if harm == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:100])
    assert run(tmp_path, plan)[1].clips == 4
    assert shards(tmp_path) == whole


def test_a_capture_can_be_lengthened(tmp_path: Path) -> None:
    clips, target = some_clips(4), zoo_target()
    run(tmp_path, zoo_plan(FixedSource(clips[:2]), target))
    index, report = run(tmp_path, zoo_plan(FixedSource(clips), target))
    assert (report.clips, index.clips, index.done) == (2, 4, 4)


def test_other_settings_are_refused_and_named(tmp_path: Path) -> None:
    plan = zoo_plan(FixedSource(some_clips(2)))
    run(tmp_path, plan)
    before = (tmp_path / "index.json").read_bytes()
    other: list[tuple[CapturePlan, str]] = [
        (replace(plan, spec=replace(SPEC, layers=(1,))), r"layers \(1, 3\) there, \(1,\) now"),
        (replace(plan, spec=replace(SPEC, max_new_tokens=3)), "max-new-tokens 12 there, 3 now"),
        (replace(plan, source=FixedSource(some_clips(2), "taken")), "kind given there, taken now"),
        (replace(plan, info=replace(plan.info, dtype="bfloat16")), "dtype float64 there, bfloat16 now"),
        (replace(plan, info=replace(plan.info, sha256="1" * 64)), "another target"),
    ]
    for one, difference in other:
        with pytest.raises(CrossdraftError, match=rf"with other settings \({difference}\); name another folder"):
            one.resume(tmp_path)
    replace(plan, batch=2, workers=1, shard_clips=7).resume(tmp_path)  # how, not what
    assert (tmp_path / "index.json").read_bytes() == before


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(CrossdraftError, match="holds no capture; name a new folder"):
        zoo_plan(FixedSource(some_clips(1))).resume(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [({"batch": 0}, "--batch is 0"), ({"workers": -1}, "--workers is -1"), ({"shard_clips": 0}, "--shard-clips is 0")],
)
def test_settings_out_of_range_are_refused(settings: dict[str, int], sentence: str) -> None:
    with pytest.raises(CrossdraftError, match=sentence):
        zoo_plan(FixedSource(some_clips(1)), **settings)


def test_a_capture_of_nothing_is_refused() -> None:
    with pytest.raises(CrossdraftError, match="--max-new-tokens asks for 0; a capture needs at least 1"):
        replace(SPEC, max_new_tokens=0)
    with pytest.raises(CrossdraftError, match="--layers asks for 0"):
        replace(SPEC, layers=())


def test_a_capture_of_an_earlier_version_is_resumed(tmp_path: Path) -> None:
    """Earlier shards hold top-k tokens, which nothing reads, and the index says how many."""
    clips, target = some_clips(4), zoo_target()
    run(tmp_path, zoo_plan(FixedSource(clips[:2]), target))
    answers = list(CaptureStore.open(tmp_path).answer_tokens())
    path, index = tmp_path / "shard-00000.safetensors", json.loads((tmp_path / "index.json").read_text())
    answer_tokens = sum(map(len, answers))
    top = {"top.ids": torch.zeros(answer_tokens, 8, dtype=torch.int32), "top.logits": torch.zeros(answer_tokens, 8)}
    save_file(load_file(path) | top | {"top.at": torch.zeros(7, dtype=torch.int64)}, path)
    index["wanted"]["top_k"], index["asked_sha256"] = 8, "of then"
    index["shards"][0] |= {"bytes": path.stat().st_size, "sha256": sha256(path)}
    (tmp_path / "index.json").write_text(json.dumps(index))
    found, report = run(tmp_path, zoo_plan(FixedSource(clips), target))
    assert (report.clips, found.done, found.asked_sha256) == (2, 4, "of then")
    store = CaptureStore.open(tmp_path)
    store.check()
    assert all(torch.equal(a, b) for a, b in zip(answers, store.answer_tokens(), strict=False))
    assert store.batch([0, 7], (1, 3), (0,)).hidden[3].abs().sum() > 0


# -- the disk ----------------------------------------------------------------------------------------------------------


def test_the_disk_estimate_is_right_within_what_answers_differ(tmp_path: Path) -> None:
    plan = zoo_plan(FixedSource(some_clips(4)))
    expected = estimate_disk(tmp_path / "new" / "folder", plan, plan.resume(tmp_path))
    assert not (tmp_path / "new").exists()
    index, _ = run(tmp_path, plan)
    assert 0.6 * index.bytes < expected.needed < 1.3 * index.bytes
    halfway = replace(index, shards=index.shards[:1])
    assert estimate_disk(tmp_path, plan, halfway).needed == round(2 * index.shards[0].bytes / 2)
    assert estimate_disk(tmp_path, plan, index).needed == 0


def test_a_disk_too_small_is_one_sentence(tmp_path: Path) -> None:
    plan = zoo_plan(FixedSource(some_clips(1)))
    expected = estimate_disk(tmp_path, plan, plan.resume(tmp_path))
    expected.check()
    with pytest.raises(
        CrossdraftError, match=r"needs about 3 GB in .*, where 2.5 GB are free: 500 MB lack; capture fewer"
    ):
        replace(expected, needed=3_000_000_000, free=2_500_000_000).check()
    with pytest.raises(CrossdraftError, match="lack"):
        replace(expected, needed=expected.free * 2).check()


def test_sizes_are_readable() -> None:
    assert [format_size(n) for n in (0, 999, 1234567, 5e13)] == ["0 B", "999 B", "1.23 MB", "50 TB"]


# -- compared with the target alone ------------------------------------------------------------------------------------


def test_both_sides_of_a_comparison_answer_the_same(tmp_path: Path) -> None:
    plan = zoo_plan(FixedSource(some_clips(4)))
    turns = InterleavedRecorder(plan.target, plan.spec, plan.batch)
    turns.warm_up(plan.source.read(0))
    assert turns.seconds == turns.generated_s == 0
    _, report = capture(tmp_path, plan, plan.resume(tmp_path), turns, lambda: None)
    found = CaptureComparison.of(turns, report.filing_s)
    assert found.answers == found.identical == 12
    assert found.ratio == pytest.approx(turns.generated_s / (turns.seconds + report.filing_s), abs=1e-3)
    assert report.seconds > turns.seconds + turns.generated_s
    assert "12 of them are identical" in found.sentence()
