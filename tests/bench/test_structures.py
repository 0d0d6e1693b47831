"""Structured answers in benches: lines of prompts, the library's own masks, and a fault that is found."""

import json
from dataclasses import replace

import pytest
import torch

from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.request import Request
from crossdraft.errors import CrossdraftError
from crossdraft.structure.masks import GrammarMasks
from crossdraft.structure.structure import Structure
from crossdraft_lab.bench.baselines import LibraryMask
from crossdraft_lab.bench.identity import FORCED_CONFIGS, GENERATE, choose_configs, run_identity
from crossdraft_lab.bench.structures import STRUCTURES, TimedStructure, structure_of
from crossdraft_lab.bench.workload import Workload, items, read_prompts

CHOICE = Structure.choice(["two cars", "two cats", "no"])


@pytest.fixture(scope="module")
def pairs():
    return list(items(Workload(pairs=len(STRUCTURES), max_new_tokens=12, structured=True)))


def test_lines_of_prompts_name_their_structures(tmp_path):
    schema = {"type": "boolean"}
    lines = [{"prompt": "a", "schema": schema}, {"prompt": "b", "kind": "x", "choice": ["y", "n"]}, {"prompt": "c"}]
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    found = [(one.kind, one.text, one.structure) for one in read_prompts(path)]
    assert found == [("any", "a", Structure.json(schema)), ("x", "b", Structure.choice(["y", "n"])), ("any", "c", None)]
    asked = [item.request.structure for item in items(Workload(pairs=3, prompts=path))]
    assert asked == [one[2] for one in found]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"schema": {}, "regex": "a"}, "schema and regex"),
        ({"schema": [1]}, "under schema"),
        ({"choice": "a"}, "under choice"),
        ({"regex": 3}, "regex of line 1"),
    ],
)
def test_a_wrong_structure_is_one_clear_sentence(entry, message):
    with pytest.raises(CrossdraftError, match=message):
        structure_of(entry, "line 1")


def test_questions_about_scenes_take_the_structures_in_turn(pairs):
    assert [item.request.structure for item in pairs] == [*STRUCTURES]
    assert next(iter(items(Workload(pairs=1)))).request.structure is None


@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_librarys_own_mask_is_that_of_the_engine(target, structure):
    masks = structure.begin(target.text, target.vocab_size, target.defaults.eos)
    library, said, scores = LibraryMask(target, structure, 2), [], torch.zeros(1, target.vocab_size)
    for _ in range(12):
        mask = masks.mask()
        found = library(torch.tensor([[0, 0, *said]]), scores)
        assert torch.equal(found[0] == 0, mask)
        token = mask.nonzero()[-1].item()
        if token in target.eos:
            break
        said.append(token)
        masks.commit([token])


def test_masks_are_timed_and_forced_text_can_be_left_out(target):
    request = Request("what?", torch.zeros(8, 28, 28, 3, dtype=torch.uint8).numpy(), max_new_tokens=12)
    plain, forced = TimedStructure(CHOICE, forced_text=False), TimedStructure(CHOICE)
    alone, drafted = (DecodeLoop(target).generate([replace(request, structure=one)])[0] for one in (plain, forced))
    assert alone.tokens == drafted.tokens
    assert alone.stats.drafted == 0 < drafted.stats.drafted
    assert plain.nodes == alone.stats.rounds
    assert forced.nodes == drafted.stats.rounds + drafted.stats.accepted  # a greedy answer needs no others
    assert plain.seconds > 0


def test_structured_answers_are_those_of_generate_in_every_way(models, target, pairs):
    checks = run_identity(target, models, None, [FORCED_CONFIGS], pairs)
    assert [check.name for check in checks] == [GENERATE, *(config.name for config in FORCED_CONFIGS)]
    assert all(check.equal == check.total == len(pairs) for check in checks)
    assert all(check.drafted for check in checks[1:])


def test_a_mask_that_is_wrong_behind_a_draft_is_found_out(models, target, pairs, monkeypatch):
    mask = GrammarMasks.mask

    def narrow(self, path=()):
        """Behind a drafted node only the last of the tokens that may come."""
        found = mask(self, path)
        if path:
            found[found.nonzero()[:-1, 0]] = False
        return found

    monkeypatch.setattr(GrammarMasks, "mask", narrow)
    monkeypatch.setattr(GrammarMasks, "allows", lambda self, path, token: False)
    check = run_identity(target, models, None, [FORCED_CONFIGS[:1]], pairs)[1]
    assert check.failed


def test_structured_answers_are_checked_with_chains_and_trees():
    groups = choose_configs((), structured=True)
    assert [group[0].spec for group in groups] == ["forced", "ngram", "glance"]
