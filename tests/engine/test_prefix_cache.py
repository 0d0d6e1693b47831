"""What is known of a prompt is not read again, and the answers stay the same."""

from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
import torch

from crossdraft.drafters.independent import IndependentDrafter
from crossdraft.engine.content import DIGEST_BYTES, Content
from crossdraft.engine.drafter import Needs
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.prefix_cache import WORTHWHILE, PrefixCache
from crossdraft.engine.prefix_cache import _Edge as Edge
from crossdraft.engine.prompt import LazyFeatures, Prompt
from crossdraft.engine.request import Request
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.sampling import Sampling
from crossdraft.engine.target import Target
from crossdraft.engine.tree import DraftTree
from tests.engine.scripted import Scripted
from tests.engine.zoo import EOS, IMAGE, IMAGES, VIDEO, ZOO, noisy

PLENTY = 1 << 30
PIXELS = ("pixel_values_videos", "pixel_values")


class Zoo:
    """A target of the zoo that reads ready-made inputs, and counts the clips that it encodes."""

    def __init__(self, name="video_llava", noise=0.0):
        model, self.prompt = ZOO[name]()
        self.target = Target(noisy(model, noise) if noise else model, self._prepare, str, [EOS])
        self.shown = IMAGE if name == "glm4v" else VIDEO  # GLM's frames are written as images
        self.encoded = 0
        encode = self.target.encode
        self.target.encode = lambda prompt: (setattr(self, "encoded", self.encoded + 1), encode(prompt))[1]

    def _prepare(self, request):
        features = {name: value for name, value in request.inputs.items() if name != "input_ids"}
        if "mm_token_type_ids" in features:
            features["mm_token_type_ids"] = (request.inputs["input_ids"] == self.shown).int() * 2
        if "token_type_ids" in features:
            features["token_type_ids"] = (request.inputs["input_ids"] == IMAGE).int()
        return Prompt(request.inputs["input_ids"][0], features)

    def ask(self, *tail, clip=0.0, before=(), namespace="", **more):
        """A request whose last tokens are `tail`; the clip's last pixel differs by `clip`."""
        ids = torch.tensor([*before, *self.prompt.input_ids.tolist()[:-2], *tail])
        features = dict(self.prompt.features)
        (pixels,) = features.keys() & PIXELS
        features[pixels] = features[pixels].clone()
        features[pixels].view(-1)[-1] += clip
        return Request(
            "x",
            inputs={"input_ids": ids[None], **features},
            max_new_tokens=more.pop("max_new_tokens", 12),
            namespace=namespace,
            **more,
        )


def answers(zoo, requests, prefixes=None, drafter=None, **more):
    """Answer requests one after the other, by one loop."""
    decoder = DecodeLoop(zoo.target, drafter, prefixes=prefixes, **more)
    return [decoder.generate([request])[0] for request in requests]


QUESTIONS = [(8, 9), (8, 10), (8, 9), (11, 12, 13), (14,), (8, 9, 15)]


@pytest.mark.parametrize("name", sorted(ZOO))
def test_a_known_clip_is_not_read_again_and_the_answers_stay(name):
    zoo = Zoo(name)
    requests = [zoo.ask(*tail, clip=clip) for tail in QUESTIONS for clip in (0.0, 0.5)]
    alone = answers(zoo, requests)
    zoo.encoded = 0
    prefixes = PrefixCache(PLENTY)
    found = answers(zoo, requests, prefixes)
    assert [answer.tokens for answer in found] == [answer.tokens for answer in alone]
    front = len(zoo.prompt) - 2 if name == "qwen2_5_vl" else len(zoo.prompt) - 3
    assert [answer.stats.cached_tokens >= front for answer in found] == [False] * 2 + [True] * 10
    assert zoo.encoded == 2
    assert len({answer.tokens for answer in found}) > 3


def test_one_pixel_is_another_clip():
    zoo = Zoo()
    requests = [zoo.ask(8, 9, clip=clip) for clip in (0.0, 1e-3, 3.0)]
    found = answers(zoo, requests, PrefixCache(PLENTY))
    assert [answer.stats.cached_tokens for answer in found] == [0, 0, 0]
    assert found[2].tokens == answers(zoo, requests[2:])[0].tokens != found[0].tokens


def test_a_digest_that_forgot_the_clip_would_be_seen():
    """The same, with what tells clips apart taken out: another clip's answer comes."""
    zoo, prefixes = Zoo(), PrefixCache(PLENTY)
    requests = [zoo.ask(8, 9, clip=clip) for clip in (0.0, 3.0)]
    prefixes._digests.of = lambda *values: Content(b"0" * DIGEST_BYTES)
    wrong = answers(zoo, requests, prefixes)[1]
    assert wrong.stats.cached_tokens > 0
    assert wrong.tokens != answers(zoo, requests)[1].tokens


def test_namespaces_share_nothing():
    zoo, prefixes = Zoo(), PrefixCache(PLENTY)
    requests = [zoo.ask(8, 9, namespace=name) for name in ("a", "b", "a", None, None)]
    found = answers(zoo, requests, prefixes)
    cached = [answer.stats.cached_tokens for answer in found]
    assert cached[:2] == [0, 0]
    assert cached[2] > 0
    assert cached[3:] == [0, 0]  # it leaves nothing and finds nothing
    assert len({answer.tokens for answer in found}) == 1
    assert zoo.encoded == 4


def test_a_conversation_goes_on_where_it_was():
    zoo, prefixes = Zoo(), PrefixCache(PLENTY)
    first = answers(zoo, [zoo.ask(8, 9)], prefixes)[0]
    turn = zoo.ask(8, 9, *first.tokens, 20, 21)
    found = answers(zoo, [turn], prefixes)[0]
    assert found.stats.cached_tokens == len(zoo.prompt) + len(first.tokens) - 1  # the last token was not read yet
    assert found.tokens == answers(zoo, [turn])[0].tokens


def test_what_was_used_longest_ago_goes_first():
    zoo, size = Zoo(), PrefixCache(PLENTY)
    answers(zoo, [zoo.ask(8, 9, clip=1.0)], size)
    prefixes = PrefixCache(int(2.05 * size.nbytes))
    order = (0, 1, 0, 2, 0, 1, 2)
    found = answers(zoo, [zoo.ask(8, 9, clip=float(clip)) for clip in order], prefixes)
    assert [answer.stats.cached_tokens > 0 for answer in found] == [False, False, True, False, True, False, False]
    assert 0 < prefixes.nbytes <= prefixes.most_bytes
    alone = answers(zoo, [zoo.ask(8, 9, clip=float(clip)) for clip in order])
    assert [answer.tokens for answer in found] == [answer.tokens for answer in alone]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 1.3, 2.1])
def test_however_little_is_kept_the_answers_stay(share):
    zoo, size = Zoo(), PrefixCache(PLENTY)
    requests = [zoo.ask(*tail, clip=float(at % 3)) for at, tail in enumerate(QUESTIONS * 3)]
    alone = answers(zoo, requests)
    answers(zoo, requests[:1], size)
    prefixes = PrefixCache(int(share * size.nbytes))
    assert [answer.tokens for answer in answers(zoo, requests, prefixes)] == [answer.tokens for answer in alone]
    assert prefixes.nbytes <= prefixes.most_bytes
    held = sum(edge.nbytes for edge in edges(prefixes)) + sum(one.nbytes for one in prefixes._features.values())
    assert prefixes.nbytes == held
    named = Counter(digest for edge in edges(prefixes) for digest in edge.contents)
    assert named + Counter(prefixes._features.keys()) == prefixes._known


def test_placeholders_of_two_kinds_that_change_their_order_are_another_prompt():
    """The same tensors, an image in front of the clip or behind it: the ids alone tell."""
    zoo = Zoo()
    image = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(9)).double()
    clip, still = [VIDEO] * 40, [IMAGE] * 4

    def ask(*visual):
        ids = torch.tensor([[1, 5, *visual, 8, 9]])
        return Request("x", inputs={"input_ids": ids, **zoo.prompt.features, "pixel_values": image}, max_new_tokens=12)

    requests = [ask(*clip, *still), ask(*still, *clip)]
    found = answers(zoo, requests, PrefixCache(PLENTY))
    assert found[1].stats.cached_tokens == 0
    assert [one.tokens for one in found] == [one.tokens for one in answers(zoo, requests)]
    assert found[0].tokens != found[1].tokens


def test_token_types_that_do_not_follow_from_the_ids_are_another_prompt():
    zoo, prefixes = Zoo("qwen2_5_vl"), PrefixCache(PLENTY)
    zoo.target.prepare = lambda request: Prompt(
        request.inputs["input_ids"][0], {k: v for k, v in request.inputs.items() if k != "input_ids"}
    )
    right = zoo.ask(8, 9)
    right = replace(right, inputs={**right.inputs, "mm_token_type_ids": (right.inputs["input_ids"] == VIDEO).int() * 2})
    wrong = replace(right, inputs={**right.inputs, "mm_token_type_ids": torch.zeros_like(right.inputs["input_ids"])})
    found = answers(zoo, [right, wrong, right], prefixes)
    assert [one.stats.cached_tokens > 0 for one in found] == [False, False, True]
    assert found[1].tokens == answers(zoo, [wrong])[0].tokens


def test_types_distinguish_frames_from_images_that_one_token_stands_for():
    zoo, prefixes = Zoo("glm4v"), PrefixCache(PLENTY)
    zoo.target.prepare = lambda request: Prompt(
        request.inputs["input_ids"][0], {k: v for k, v in request.inputs.items() if k != "input_ids"}
    )
    clip, (_, still) = zoo.ask(8, 9), IMAGES["glm4v_image"]()
    types = (clip.inputs["input_ids"] == IMAGE).int()
    clip = replace(clip, inputs={**clip.inputs, "mm_token_type_ids": types * 2})
    image = Request("x", inputs={"input_ids": still.input_ids[None], **still.features}, max_new_tokens=12)
    found = answers(zoo, [clip, image, clip, image], prefixes)
    assert [one.stats.cached_tokens > 0 for one in found] == [False, False, True, True]
    assert [one.tokens for one in found] == [one.tokens for one in answers(zoo, [clip, image, clip, image])]


def test_what_is_added_behind_early_layers_is_kept_with_the_features():
    """DeepStack: without it, the same clip would be answered otherwise."""
    zoo, prefixes = Zoo("qwen3_vl"), PrefixCache(PLENTY)
    first, second = zoo.ask(8, 9), zoo.ask(14, before=(4, 4))  # another beginning: the clip is read, not encoded, anew
    found = answers(zoo, [first, second], prefixes)
    (kept,) = prefixes._features.values()
    assert [len(layer[0]) for layer in kept.encoded["video"].deepstack_features] == [18, 18]
    assert kept.nbytes == (1 + 2) * 18 * 64 * 8
    assert zoo.encoded == 1
    assert [one.tokens for one in found] == [one.tokens for one in answers(zoo, [first, second])]
    with torch.inference_mode():
        for layer in kept.encoded["video"].deepstack_features:
            layer[0].zero_()
    assert (
        answers(zoo, [zoo.ask(14, before=(3, 3))], prefixes)[0].tokens
        != answers(zoo, [zoo.ask(14, before=(3, 3))])[0].tokens
    )


def test_a_prompt_of_text_alone_does_not_fail_whoever_looks_into_the_target():
    zoo, prefixes = Zoo(), PrefixCache(PLENTY)
    text = [Request("x", inputs={"input_ids": torch.tensor([[1, 5, 6, *tail]])}) for tail in ((7, 8), (7, 9))]
    drafter = Scripted([], Needs(hidden_layers=(2,), visual_layers=(2,)))
    found = answers(zoo, text, prefixes, DraftRunner(drafter, "off"))
    assert [one.tokens for one in found] == [one.tokens for one in answers(zoo, text)]


def test_of_features_only_what_a_forward_reads_is_kept():
    zoo, prefixes = Zoo(), PrefixCache(PLENTY)
    answers(zoo, [zoo.ask(8, 9)], prefixes)
    (kept,) = prefixes._features.values()
    assert kept.nbytes == kept.encoded["video"].pooler_output.nbytes == 8 * 5 * 64 * 8
    assert not {"last_hidden_state", "hidden_states"} & kept.encoded["video"].keys()


def test_eviction_looks_at_what_it_drops_and_not_at_all_the_others(monkeypatch):
    zoo, prefixes = Zoo(), PrefixCache(PLENTY)
    answers(zoo, [zoo.ask(8, 9, clip=float(clip), max_new_tokens=1) for clip in range(30)], prefixes)
    count = len(edges(prefixes)) - 1
    looked = []
    monkeypatch.setattr(
        Edge, "__getattribute__", lambda edge, name: looked.append(name) or object.__getattribute__(edge, name)
    )
    prefixes.most_bytes = 0
    prefixes._evict()
    assert len(looked) < 40 * count  # a walk over all leaves for each that goes is quadratic
    assert (prefixes.nbytes, prefixes._roots, +prefixes._known) == (0, {}, {})


def test_what_another_models_cache_knows_is_not_taken_over():
    zoo = Zoo()
    request = PrefixCache(PLENTY).identify(zoo.ask(8, 9))
    assert request.content is not None
    assert PrefixCache(0).identify(replace(request, known=True)) == request
    assert (PrefixCache(0).identify(replace(request, known=True)).content, request.known) == (None, False)


def edges(prefixes):
    """Every edge, each reached from the one that it names as its parent."""
    found = list(prefixes._roots.values())
    for edge in found:
        for first, child in edge.children.items():
            assert (child.parent, child.ids[0], len(child.ids)) == (edge, first, len(child.span))
            found.append(child)
    return found


def test_a_budget_below_one_prompt_is_said_once_to_whom_it_concerns(caplog):
    zoo = Zoo()
    found = answers(zoo, [zoo.ask(8, 9)] * 2, PrefixCache(100))
    assert found[1].stats.cached_tokens == 0
    assert sum("cache_bytes" in record.message for record in caplog.records) == 1


def test_a_tree_splits_where_texts_part():
    zoo, prefixes = Zoo(), PrefixCache(PLENTY)
    answers(zoo, [zoo.ask(8, 9, max_new_tokens=1), zoo.ask(8, 10, max_new_tokens=1)], prefixes)
    front = len(zoo.prompt) - 3
    stretches = sorted((len(edge.ids), len(edge.children)) for edge in edges(prefixes) if edge.span)
    assert stretches == [(1, 0), (1, 0), (2, 2), (front, 1)]  # the clip; the text in common; where they part


def test_the_text_before_another_clip_is_read_with_it_unless_it_is_long():
    zoo, prefixes = Zoo(), PrefixCache(PLENTY)
    few, many = tuple(range(20, 40)), tuple(20 + at % 50 for at in range(WORTHWHILE + 5))
    for before, wanted in ((few, 0), (many, len(many) + 3)):
        requests = [zoo.ask(8, 9, clip=clip, before=before) for clip in (0.0, 1.0)]
        found = answers(zoo, requests, prefixes)
        assert found[1].stats.cached_tokens == wanted
        assert found[1].tokens == answers(zoo, requests)[1].tokens


@pytest.mark.parametrize("hidden", ["auto", "before", "beside", "off"])
@pytest.mark.parametrize("batch", [1, 3])
def test_with_a_drafter_and_in_batches(hidden, batch):
    zoo, kin = Zoo(), Zoo(noise=1e-3)
    requests = [zoo.ask(*tail, clip=clip) for tail in QUESTIONS for clip in (0.0, 0.5)]
    alone = [answer.tokens for answer in answers(zoo, requests)]
    drafter = IndependentDrafter(kin.target, sees=True)
    drafter.prefixes = PrefixCache(PLENTY)
    decoder = DecodeLoop(zoo.target, DraftRunner(drafter, hidden), max_batch=batch, prefixes=PrefixCache(PLENTY))
    found = decoder.generate(requests)
    assert [answer.tokens for answer in found] == alone
    assert sum(answer.stats.accepted for answer in found) > 0
    assert kin.encoded == 2
    assert sum(answer.stats.cached_tokens > 0 for answer in found) == len(requests) - 2


def test_an_earlier_answer_to_the_same_prompt_is_a_draft_where_there_is_a_drafter():
    zoo, prefixes = Zoo(), PrefixCache(PLENTY)
    ask, drawn = partial(zoo.ask, 8, ignore_eos=True), Sampling(temperature=1.0, seed=1)
    longer = ask(9, max_new_tokens=20)
    requests = [ask(9), ask(9), longer, longer, ask(10), ask(9, clip=3.0), ask(9, namespace="b")]
    requests += [ask(9, sampling=drawn)]
    found = answers(zoo, requests, prefixes, DraftRunner(Scripted([])), adaptive=False)
    # 11 tokens of the first answer are known: the second one's last token, and the third one's next, are the bonus.
    assert [answer.stats.rounds for answer in found] == [12, 1, 9, 1, 12, 12, 12, 12]
    assert [answer.tokens for answer in found] == [answer.tokens for answer in answers(zoo, requests)]
    alone = answers(zoo, requests[:2], prefixes)
    assert [answer.stats.rounds for answer in alone] == [12, 12]


def test_a_drafter_drafts_the_same_from_its_cache():
    zoo, kin = Zoo(), Zoo(noise=1e-3)
    requests = [zoo.ask(*tail) for tail in QUESTIONS]

    def drafted(prefixes):
        drafter = IndependentDrafter(kin.target, sees=True)
        drafter.prefixes = prefixes
        found = answers(zoo, requests, drafter=DraftRunner(drafter, "off"), adaptive=False, nodes=4)
        return [answer.stats.accepted for answer in found]

    assert drafted(PrefixCache(PLENTY)) == drafted(PrefixCache(0))


@pytest.mark.parametrize("needs", [Needs(hidden_layers=(1, -1)), Needs(hidden_layers=(2,), visual_layers=(0, 2))])
def test_who_looks_into_the_target_sees_the_same(needs):
    zoo = Zoo()
    requests = [zoo.ask(*tail, max_new_tokens=5) for tail in dict.fromkeys(QUESTIONS)]

    def outputs(prefixes):
        drafter = Scripted([DraftTree.chain((3, 4))] * 50, needs)
        found = answers(zoo, requests, prefixes, DraftRunner(drafter, "off"), adaptive=False, nodes=2)
        return [answer.stats.cached_tokens for answer in found], drafter.outputs

    cached, known = outputs(PrefixCache(PLENTY))
    front = len(zoo.prompt) - 3
    assert cached == [0] + [front] * (len(requests) - 1)  # the text behind the clip is read: its features are wanted
    for ours, theirs in zip(known, outputs(None)[1], strict=True):
        assert ours.tokens == theirs.tokens
        for layer, features in theirs.hidden.items():
            torch.testing.assert_close(ours.hidden[layer], features, atol=1e-10, rtol=0)
        assert (ours.prompt is None) == (theirs.prompt is None)
        if theirs.prompt is not None:
            assert (ours.prompt.tokens, ours.prompt.visual_tokens) == (
                theirs.prompt.tokens,
                theirs.prompt.visual_tokens,
            )
            assert ours.prompt.visual.keys() == theirs.prompt.visual.keys()
            for layer, features in theirs.prompt.visual.items():
                torch.testing.assert_close(ours.prompt.visual[layer], features, atol=1e-10, rtol=0)


def test_features_that_nobody_captured_are_captured_when_they_are_asked_for():
    zoo, prefixes = Zoo(), PrefixCache(PLENTY)
    answers(zoo, [zoo.ask(8, 9)], prefixes)
    drafter = Scripted([], Needs(hidden_layers=(2,), visual_layers=(2,)))
    found = answers(zoo, [zoo.ask(8, 9), zoo.ask(8, 10)], prefixes, DraftRunner(drafter, "off"))
    assert [answer.stats.cached_tokens for answer in found] == [0, len(zoo.prompt) - 3]


def test_sampled_answers_draw_the_same():
    zoo = Zoo()
    requests = [zoo.ask(*tail, sampling=Sampling(temperature=1.0, seed=3)) for tail in QUESTIONS]
    found = answers(zoo, requests, PrefixCache(PLENTY))
    assert [answer.tokens for answer in found] == [answer.tokens for answer in answers(zoo, requests)]


def test_a_clip_that_is_written_over_while_it_is_read_leaves_nothing(tmp_path):
    """What was made of the new bytes must not be found under the old ones."""
    path, zoo, prefixes = tmp_path / "clip.bin", Zoo(), PrefixCache(PLENTY)
    path.write_bytes(b"old")
    asked = zoo.ask(8, 9)
    asked = replace(asked, inputs={**asked.inputs, "clip": path})
    prepare = zoo.target.prepare
    zoo.target.prepare = lambda request: (path.write_bytes(b"newer"), prepare(request))[1]
    answers(zoo, [asked], prefixes)
    assert (prefixes.nbytes, edges(prefixes)[1:]) == (0, [])


def test_lazy_features_are_made_once_and_only_if_they_are_wanted():
    made = []

    def load():
        made.append(1)
        return {"b": torch.ones(2), "c": torch.ones(3)}

    lazy = LazyFeatures({"a": torch.zeros(1)}, ("b", "c"), load)
    assert (list(lazy), len(lazy), "b" in lazy, "d" in lazy) == (["a", "b", "c"], 3, True, False)
    assert (len(lazy["a"]), made) == (1, [])
    assert (len(lazy["b"]), len(lazy["c"]), made) == (2, 3, [1])
    with pytest.raises(KeyError):
        lazy["d"]
