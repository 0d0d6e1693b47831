"""Longer clips than the shipped weights were trained on: the heads read as long a text as the target does."""

from crossdraft_lab.bench.experiments.blocks import MODELS, loaded_methods
from crossdraft_lab.bench.experiments.prefill_hiding import lengthen
from crossdraft_lab.bench.experiments.record import Setting
from crossdraft_lab.bench.experiments.variants import Variant
from crossdraft_lab.bench.workload import Workload, items


def test_a_head_that_has_too_few_positions_says_so_and_drafts_once_it_is_lengthened(tmp_path):
    (item,) = items(Workload(1, frames=2, max_new_tokens=8))
    with loaded_methods([Variant("target"), Variant("eaglevlm")], Setting(None, tmp_path), MODELS) as (_, made):
        made["eaglevlm"].engine.drafter.drafter.max_positions = 64  # fewer than the prompt takes
        own, short = (made[name].answer(item) for name in ("target", "eaglevlm"))
        assert own.prompt_tokens > 64
        assert sum(short.offered_at) == 0
        assert any("none of the head's 64 positions" in note for note in short.notes)
        lengthen(made["eaglevlm"], 4096)
        long = made["eaglevlm"].answer(item)
        assert sum(long.offered_at) > 0
        assert long.notes == ()
        assert own.tokens == short.tokens == long.tokens
