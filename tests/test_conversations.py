"""Images, several clips, system prompts and conversations: the answers are those of Hugging Face's `generate`."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import crossdraft as cd
from crossdraft.engine.detokenize import TokenText
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.prefix_cache import PrefixCache
from crossdraft.engine.target import Target
from crossdraft.messages import Message, Part, read_messages
from crossdraft.video.image import image_frames
from crossdraft.video.inputs import FAMILIES, _own_text, placeholder_ids
from crossdraft.video_prompt import VideoPrompt
from tests.video.test_inputs import CONFIGS, IDS, OWN, build, spec_for, with_template
from tests.video.test_inputs import tokenizer as _tokenizer_fixture

tokenizer = _tokenizer_fixture
PLENTY = 1 << 30
EOS = IDS["</s>"]
ONE_KIND = {"glm4v", "glm4v_moe", "glm46v"}  # images or clips, not both in one conversation


def noise(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


CLIP, OTHER = noise(4, 30, 44, 3), noise(4, 30, 44, 3, seed=1)
SHORT = OTHER[:2]
IMAGE = noise(40, 36, 3, seed=2)
WIDE = noise(18, 61, 3, seed=3)


def text(said):
    return {"type": "text", "text": said}


def video(clip):
    return {"type": "video", "video": clip}


def image(pixels):
    return {"type": "image", "image": pixels}


def user(*parts):
    return {"role": "user", "content": list(parts)}


def with_arguments(arguments, name="look"):
    call = {"id": "a", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


CALLED = with_arguments('{"side": "left"}')


class Family:
    """A tiny model of a family behind the adapter, in double precision; it counts what it encodes."""

    def __init__(self, kind, tokenizer):
        made = build(kind)
        self.model = made if kind.endswith("_moe") else made.double()  # no kernel mixes experts in double precision
        with torch.no_grad():  # freshly drawn weights repeat one token for ever
            for weight in self.model.parameters():
                weight.mul_(3)
        spec = spec_for(kind)
        prepare = VideoPrompt(self.model, tokenizer, spec, image_spec=spec)
        self.target = Target(self.model, prepare, TokenText(lambda ids: str(tokenizer.decode(ids))), [EOS])
        self.encoded = 0
        encode = self.target.encode
        self.target.encode = lambda prompt: (setattr(self, "encoded", self.encoded + 1), encode(prompt))[1]

    def alone(self, request):
        """The tokens of `generate`, of all inputs at once."""
        prompt = self.target.prepare(request)
        features = {k: v.to(self.model.dtype) if v.is_floating_point() else v for k, v in dict(prompt.features).items()}
        out = self.model.generate(
            input_ids=prompt.input_ids[None], **features, max_new_tokens=request.token_limit, do_sample=False,
            eos_token_id=EOS, pad_token_id=0,
        )  # fmt: skip
        return tuple(out[0, len(prompt) :].tolist())

    def answers(self, requests, prefixes=None):
        decoder = DecodeLoop(self.target, prefixes=prefixes)
        return [decoder.generate([request])[0] for request in requests]


@pytest.fixture(scope="module")
def family(tokenizer):
    made = {}

    def get(kind):
        if kind not in made:
            made[kind] = Family(kind, tokenizer)
        made[kind].encoded = 0
        return made[kind]

    return get


def ask(**given):
    return cd.Request(**{"max_new_tokens": 8} | given)


def requests_of(kind):
    two = [CLIP, OTHER]
    found = [
        ask(prompt="What?", image=IMAGE),
        ask(prompt="What?", image=[IMAGE, WIDE]),
        ask(
            messages=[
                user(image(WIDE), text("What?")),
                {"role": "assistant", "content": "A."},
                user(text("And?"), image(IMAGE)),
            ]
        ),
        ask(prompt="What?", video=two),
        ask(prompt="What?", video=CLIP, system="Be brief."),
        ask(messages=[{"role": "user", "content": "Hello"}]),
        ask(
            messages=[user(video(CLIP), text("What?")), {"role": "assistant", "content": "A car."}, user(text("Why?"))]
        ),
        ask(
            messages=[
                {"role": "system", "content": "Be brief."},
                user(video(CLIP), text("What?")),
                {"role": "assistant", "content": [text("A car.")]},
                user(text("And here?"), video(OTHER)),
            ]
        ),
    ]
    if kind not in ONE_KIND:
        found += [
            ask(prompt="What?", image=[IMAGE, IMAGE[::-1]], video=CLIP),
            ask(messages=[user(video(CLIP), text("Is it"), image(IMAGE), text("?"))]),
        ]
    return found


@pytest.mark.parametrize("kind", CONFIGS)
def test_answers_are_those_of_generate(kind, family):
    one = family(kind)
    requests = requests_of(kind)
    expected = [one.alone(request) for request in requests]
    prefixes = PrefixCache(PLENTY)
    assert [answer.tokens for answer in one.answers(requests, prefixes)] == expected
    again = one.answers(requests, prefixes)
    assert [answer.tokens for answer in again] == expected
    if not one.target.traits.mixers:  # these go on only from where a state was kept
        assert all(answer.stats.cached_tokens >= answer.stats.prompt_tokens - 1 for answer in again)
    assert len(set(expected)) > 2


@pytest.mark.parametrize("kind", ["video_llava", "qwen2_5_vl", "internvl"])
def test_the_longest_known_beginning_is_not_read_again_item_by_item(kind, family):
    """A question on the same two clips reads its words; the clips in another order are other prompts."""
    one, prefixes = family(kind), PrefixCache(PLENTY)
    requests = [
        ask(prompt="What?", video=[CLIP, OTHER]),
        ask(prompt="Why is it so?", video=[CLIP, OTHER]),
        ask(prompt="What?", video=[CLIP, SHORT]),
        ask(prompt="What?", video=[OTHER, CLIP]),
    ]
    found = one.answers(requests, prefixes)
    assert [answer.tokens for answer in found] == [answer.tokens for answer in one.answers(requests)]
    one.encoded = 0
    first = [one.target.prepare(request).input_ids.tolist() for request in requests]
    visual = [max(at for at, token in enumerate(ids) if token in one.target.traits.visual_ids) for ids in first]
    cached = [answer.stats.cached_tokens for answer in found]
    assert cached[1] > visual[1]
    assert visual[0] // 3 < cached[2] <= visual[0]  # the first clip, and what is written after it
    assert cached[3] < visual[0] // 3


@pytest.mark.parametrize("kind", ["video_llava", "qwen2_vl"])
def test_a_clip_is_encoded_once_wherever_it_stands(kind, family):
    one, prefixes = family(kind), PrefixCache(PLENTY)
    orders = ([CLIP], [OTHER, CLIP], [CLIP, OTHER, SHORT], [CLIP, SHORT])
    requests = [ask(prompt="What?", video=clips) for clips in orders]
    found = one.answers(requests, prefixes)
    assert one.encoded == 3
    assert [answer.tokens for answer in found] == [answer.tokens for answer in one.answers(requests)]


@pytest.mark.parametrize("kind", CONFIGS)
def test_the_next_message_reads_what_is_new(kind, family):
    """All ids in common with the first prompt and its answer are known, and the image that it adds is encoded alone."""
    one, prefixes = family(kind), PrefixCache(PLENTY)
    asked = user(video(CLIP), text("What?"))
    first = one.answers([ask(messages=[asked])], prefixes)[0]
    said = {"role": "assistant", "content": first.text}
    more = [video(OTHER)] if kind in ONE_KIND else [image(IMAGE)]
    for parts, encoded in (([text("Why?")], 0), ([text("And here?"), *more], 1)):
        request = ask(messages=[asked, said, user(*parts)])
        before = (*one.target.prepare(ask(messages=[asked])).input_ids.tolist(), *first.tokens)
        ids = one.target.prepare(request).input_ids.tolist()
        common = next((at for at, (a, b) in enumerate(zip(before, ids, strict=False)) if a != b), len(before))
        one.encoded = 0
        found = one.answers([request], prefixes)[0]
        assert one.encoded == encoded
        assert common >= len(before) - len(first.tokens)
        known = len(before) - len(first.tokens) if one.target.traits.mixers else min(common, len(before) - 1)
        assert found.stats.cached_tokens >= known  # the last token was not read yet
        assert found.tokens == one.answers([request])[0].tokens


def test_an_item_that_is_taken_for_another_would_be_seen(family):
    """The same, with the digests of two clips exchanged: the other order's answer comes."""
    one, prefixes = family("video_llava"), PrefixCache(PLENTY)
    requests = [ask(prompt="What?", video=[CLIP, OTHER]), ask(prompt="What?", video=[OTHER, CLIP])]
    one.answers(requests[:1], prefixes)
    identify = prefixes.identify

    def exchanged(request):
        request = identify(request)
        return replace(request, content=replace(request.content, items=request.content.items[::-1]))

    prefixes.identify = exchanged
    wrong = one.answers(requests[1:], prefixes)[0]
    assert wrong.stats.cached_tokens > 0
    assert wrong.tokens != one.answers(requests[1:])[0].tokens


def test_a_pil_image_and_a_png_file_are_the_pixels_that_they_hold(family, tmp_path):
    pil = pytest.importorskip("PIL.Image")
    path, one = tmp_path / "i.png", family("video_llava")
    pil.fromarray(IMAGE).save(path)
    features = [
        one.target.prepare(ask(prompt="What?", image=given)).features["pixel_values"]
        for given in (IMAGE, str(path), path, pil.fromarray(IMAGE), [torch.from_numpy(IMAGE)])
    ]
    assert all(torch.equal(found, features[0]) for found in features)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"prompt": "What?", "image": "missing.png"}, "no image file at missing.png"),
        ({"prompt": "What?", "image": "https://a.b/c.png"}, "not fetched from addresses"),
        ({"prompt": "What?", "image": CLIP}, r"image is an ndarray of uint8 \[4, 30, 44, 3\]"),
        ({"prompt": "What?", "image": IMAGE.astype(float)}, "uint8"),
        ({"prompt": "What is <image>?", "image": IMAGE}, "leave it out"),
        ({"prompt": "What is <video>?", "image": IMAGE}, "leave it out"),
    ],
)
def test_what_cannot_be_read_is_said(given, complaint, family):
    with pytest.raises(cd.CrossdraftError, match=complaint):
        family("video_llava").target.prepare(ask(**given))


def test_a_broken_image_is_said(family, tmp_path):
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\nbroken")
    (tmp_path / "b.png").write_bytes(b"GIF89a")
    for name, complaint in (("a.png", "cut off or broken"), ("b.png", "not an image we read")):
        with pytest.raises(cd.CrossdraftError, match=complaint):
            image_frames(tmp_path / name)


@pytest.mark.parametrize("kind", ["internvl", "smolvlm", "gemma3"])
def test_images_and_clips_of_one_input_keep_their_order(kind, family):
    """A clip is a row of images there, and Gemma's template writes the same for both."""
    target = family(kind).target
    prompts = [
        target.prepare(ask(messages=[user(*parts, text("?"))]))
        for parts in ((video(CLIP), image(IMAGE)), (image(IMAGE), video(CLIP)))
    ]
    (clip, still), others = (prompt.items for prompt in prompts)
    assert [item.tokens for item in others] == [still.tokens, clip.tokens]
    pixels = [item.features["pixel_values"].flatten(0, -4) for item in (clip, still)]
    assert len(pixels[0]) == len(CLIP)
    assert torch.equal(prompts[0].features["pixel_values"].flatten(0, -4), torch.cat(pixels))
    assert torch.equal(prompts[1].features["pixel_values"].flatten(0, -4), torch.cat(pixels[::-1]))


@pytest.mark.parametrize("kind", sorted(ONE_KIND))
def test_who_cannot_tell_images_from_clips_says_so(kind, family):
    with pytest.raises(cd.CrossdraftError, match=r"image and a clip in one conversation.*image\[None\]"):
        family(kind).target.prepare(ask(prompt="What?", image=IMAGE, video=CLIP))


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ("What?", "messages is a str"),
        ([], "messages is empty"),
        ([{"role": "ipython", "content": "x"}], r"messages\[0\] has the role 'ipython'"),
        ([user(text("x")), {"role": "tool", "content": "y"}], r"messages\[1\] is of a tool; give the id of a call"),
        (
            [user(text("x")), CALLED, {"role": "tool", "tool_call_id": "b", "content": "y"}],
            r"messages\[2\] is of a tool",
        ),
        ([user(text("x")), {**CALLED, "tool_calls": [{"id": "a"}]}, user(text("z"))], r"tool_calls\[0\] is no call"),
        ([user(text("x")), {**CALLED, "tool_calls": 5}, user(text("z"))], r"tool_calls\[0\] is no call"),
        ([user(text("x")), with_arguments("[1]"), user(text("z"))], "no JSON object"),
        ([user(text("x")), with_arguments("{"), user(text("z"))], "no JSON object"),
        ([user(text("x")), with_arguments('{"a": "\\ud800"}'), user(text("z"))], "no JSON object"),
        ([user(text("x")), with_arguments("{}", name=3), user(text("z"))], r"tool_calls\[0\] is no call"),
        ([{"role": "user"}], "a NoneType"),
        ([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}], "end with the user's"),
        ([{"role": "user", "content": "x"}, {"role": "system", "content": "y"}], "only the first ones"),
        ([{"role": "system", "content": [image(IMAGE)]}, {"role": "user", "content": "y"}], "shows something"),
        ([user()], "The last message is empty; ask a question in it"),
        ([{"role": "user", "content": " "}], "The last message is empty; ask a question in it"),
        ([user(video("a.mp4"))], "hold no text; ask a question about what they show"),
        ([user(video("a.mp4"), text(" "))], "hold no text; ask a question about what they show"),
        ([user({"type": "audio", "audio": "a.wav"})], "no known kind"),
        ([user({"type": "video"})], "without what it names"),
    ],
)
def test_messages_of_another_shape_are_refused(messages, complaint):
    with pytest.raises(cd.CrossdraftError, match=complaint):
        cd.Request(messages=messages)


def test_messages_stand_alone_and_may_be_of_openais_shape():
    with pytest.raises(cd.CrossdraftError, match="messages, and video too"):
        cd.Request(messages=[{"role": "user", "content": "x"}], video="a.mp4")
    request = cd.Request(messages=[user({"type": "image_url", "image_url": {"url": "a.png"}}, text("What?"))])
    assert ([(part.kind, part.value) for part in request.visuals], request.question) == ([("image", "a.png")], "What?")
    assert cd.Request(messages=request.messages) == request
    assert cd.Request(messages=[user({"type": "video", "video": CLIP}, text("What?"))]).without_pixels().visuals == ()


def test_a_drafter_in_another_process_is_sent_words_and_paths_alone():
    for request in (
        cd.Request("What?", ["a.mp4", CLIP], image=[IMAGE, "i.png"]),
        cd.Request(messages=[user(video("a.mp4"), video(CLIP), image(IMAGE), image("i.png"), text("What?"))]),
    ):
        light = request.without_pixels()
        assert sorted(part.value for part in light.visuals) == ["a.mp4", "i.png"]
        assert light.question == "What?"


VICUNA = "USER: <video>\n{question} ASSISTANT:"
QWEN3 = "<|im_start|>user\n<|vision_start|><|video_pad|><|vision_end|>{question}<|im_end|>\n<|im_start|>assistant\n"
QWEN = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n" + QWEN3
GLM = "[gMASK]<sop><|user|>\n<|begin_of_video|><|video|><|end_of_video|>{question}<|assistant|>\n"
PROMPTS = {
    "video_llava": VICUNA,
    "llava_next_video": VICUNA,
    "llava_onevision": "<|im_start|>user <video>\n{question}<|im_end|><|im_start|>assistant\n",
    "qwen2_vl": QWEN,
    "qwen2_5_vl": QWEN,
    "qwen3_vl": QWEN3,
    "qwen3_vl_moe": QWEN3,
    "qwen3_5": QWEN3,
    "qwen3_5_moe": QWEN3,
    "glm4v": GLM,
    "glm4v_moe": GLM,
    "glm46v": GLM,
    "internvl": "<|im_start|>user\n<video>\n{question}<|im_end|>\n<|im_start|>assistant\n",
    "smolvlm": "<|im_start|>User: <video>{question}<end_of_utterance>\nAssistant:",
    "gemma3": "<start_of_turn>user\n<start_of_image>{question}<end_of_turn>\n<start_of_turn>model\n",
}


@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_the_prompt_of_one_question_about_one_clip(kind):
    asked = Message("user", (Part("video", None), Part("text", "{question}")))
    assert _own_text(FAMILIES[kind].chat, [asked]) == PROMPTS[kind]


def test_the_documented_conversation_of_vicuna():
    messages = read_messages(
        [
            {"role": "system", "content": "Be brief."},
            user(image(IMAGE), text("What?")),
            {"role": "assistant", "content": " A car. "},
            user(text("Why?")),
        ]
    )
    assert _own_text(FAMILIES["video_llava"].chat, messages) == (
        "Be brief. USER: <image>\nWhat? ASSISTANT: A car.</s>USER: Why? ASSISTANT:"
    )


def test_a_template_that_leaves_out_an_answer_is_not_used(family, tokenizer):
    """It knows one message: the family's own way of writing a conversation is taken."""
    own = with_template(tokenizer, OWN)
    one = family("video_llava")
    prepare = VideoPrompt(one.model, own, None)
    messages = [user(video(CLIP), text("What?")), {"role": "assistant", "content": "A car."}, user(text("Why?"))]
    whole = own.decode(prepare(ask(messages=messages)).input_ids)
    assert whole.endswith("What? ASSISTANT: A car.</s>USER: Why? ASSISTANT:")
    assert own.decode(prepare(ask(messages=messages[:1])).input_ids).endswith("What? A:")


def test_values_of_a_request_reach_the_template_and_a_final_message_goes_on(family, tokenizer):
    """By a template, and by the family's own way of writing."""
    one, turns = family("video_llava"), [user(video(CLIP), text("What?")), {"role": "assistant", "content": "A car is"}]
    own = VideoPrompt(one.model, with_template(tokenizer, OWN + "{% if short %} briefly{% endif %}"), None)
    found = [
        own(ask(prompt="What?", video=CLIP, template_kwargs={"short": short})).input_ids for short in (True, False)
    ]
    assert [tokenizer.decode(ids).rpartition(" A:")[2] for ids in found] == [" briefly", ""]
    request = ask(messages=turns, continue_final_message=True)
    for prepare in (own, VideoPrompt(one.model, tokenizer, None)):
        assert tokenizer.decode(prepare(request).input_ids).endswith("What? ASSISTANT: A car is")
    answer = one.answers([request])[0]
    assert answer.tokens == one.alone(request)


DRAFTERS = ["ngram", "union:memory,ngram", "memory", "event", "phased:event,ngram"]


@pytest.mark.parametrize("name", DRAFTERS)
def test_with_drafters_the_answers_stay(name, pair, clip):
    requests = [
        ask(prompt="What?", video=[clip.video, CLIP], events=clip.events),
        ask(prompt="What?", image=IMAGE, video=clip.video, events=clip.events, system="Be brief."),
        ask(messages=[user(video(clip.video), text("What?")), {"role": "assistant", "content": "A car."},
                      user(text("Why?"), image(IMAGE))], events=clip.events),
        ask(messages=[{"role": "user", "content": "Hello"}]),
    ]  # fmt: skip
    with cd.Engine.load(str(pair.target), None) as engine:
        alone = [engine.generate(request).tokens for request in requests]
    spec = name.replace("event", f"event:dir={pair.event}") if "event" in name else name
    with cd.Engine.load(str(pair.target), spec, cd.Options(placement="inline", adaptive=False)) as engine:
        found = [engine.generate(request) for request in requests * 2]
    assert [answer.tokens for answer in found] == alone * 2
    assert all(answer.drafter_error is None for answer in found[:3])
    assert found[4].stats.cached_tokens == found[4].stats.prompt_tokens - 1


SPELT = {
    "video_llava": "<image>",
    "qwen2_5_vl": "<|video_pad|>",
    "internvl": "<IMG_CONTEXT>",
    "gemma3": "<image_soft_token>",
}


@pytest.mark.parametrize("kind", sorted(SPELT))
@pytest.mark.parametrize("shows", [False, True])
def test_a_placeholder_in_words_is_text(kind, shows, family, tokenizer):
    """In turns that show nothing; the pictures of others stay what they are, and the answer is `generate`'s."""
    one, spelling = family(kind), SPELT[kind]

    def turns(word):
        shown = [image(IMAGE)] if shows else []
        return [
            {"role": "system", "content": f"Say {word} for a picture."},
            user(*shown, text("What?")),
            {"role": "assistant", "content": f"Write {word}{word}."},
            user(text(f"Why {word}, where?")),
        ]

    prompt, other = (one.target.prepare(ask(messages=turns(word))) for word in (spelling, "\x07"))
    visual = placeholder_ids(one.model.config)
    (bell,) = tokenizer("\x07", add_special_tokens=False)["input_ids"]
    spelt = tokenizer(spelling, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert visual.isdisjoint(spelt)
    wanted = [part for token in other.input_ids.tolist() for part in (spelt if token == bell else [token])]
    assert prompt.input_ids.tolist() == wanted
    assert str(tokenizer.decode(prompt.input_ids)).count(spelling) >= 4
    assert (len(visual & set(wanted)) > 0) is shows
    request = ask(messages=turns(spelling))
    assert one.answers([request])[0].tokens == one.alone(request)


def test_the_templates_own_word_for_a_picture_is_text_too(family):
    """Gemma's template writes `<start_of_image>`, which is no placeholder of the model."""
    one = family("gemma3")
    asked = [user(text("Why <start_of_image>?"))], [user(image(IMAGE), text("Hm?")), *turns_of("<start_of_image>")]
    for messages in asked:
        request = ask(messages=messages)
        assert one.answers([request])[0].tokens == one.alone(request)


def turns_of(word):
    return [{"role": "assistant", "content": f"Write {word}."}, user(text(f"Why {word}?"))]


def test_a_placeholder_in_a_question_with_a_picture_is_refused(family):
    for messages in ([user(image(IMAGE), text("Why <image>?"))], [user(text("Why <video>?"), image(IMAGE))]):
        with pytest.raises(cd.CrossdraftError, match="leave it out"):
            family("video_llava").target.prepare(ask(messages=messages))


HERMES = (
    "{% if tools %}{{ tools | tojson }}\n{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{{ '<|vision_start|><|video_pad|><|vision_end|>' if p.type == 'video' else p.text }}{% endfor %}{% endif %}"
    '{% for c in m.tool_calls %}<tool_call>\n{"name": "{{ c.function.name }}", "arguments": '
    "{{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.parametrize("result", ["a tree", [text("a tree")]])
def test_tools_calls_and_results_are_written_as_the_template_writes_them(tokenizer, result):
    """Arguments, which clients send as text, reach the template as an object."""
    family = Family("qwen2_5_vl", with_template(tokenizer, HERMES))
    turns = [user(video(CLIP), text("What?")), CALLED, {"role": "tool", "tool_call_id": "a", "content": result}]
    prompt = family.target.prepare(ask(messages=turns, tools=cd.Tools([LOOK])))
    call = {"type": "function", "id": "a", "function": {"name": "look", "arguments": {"side": "left"}}}
    written = with_template(tokenizer, HERMES).apply_chat_template(
        [
            user({"type": "video"}, text("What?")),
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "a", "content": "a tree"},
        ],
        tools=[LOOK], tokenize=False, add_generation_prompt=True,
    )  # fmt: skip
    ids = tokenizer(written)["input_ids"]
    kept = [token for token, before in zip(prompt.input_ids.tolist(), [None, *prompt.input_ids.tolist()], strict=False)
            if not (token == before and token in placeholder_ids(family.model.config))]  # fmt: skip
    assert kept == ids
    assert '{"side": "left"}' in written


def test_a_template_without_tools_is_named(tokenizer):
    plain = with_template(tokenizer, "{% for m in messages %}{{ m.content }}{% endfor %}")
    plain.name_or_path = "/models/plain-7B"
    target = Family("qwen2_5_vl", plain).target
    turns = [user(text("x")), CALLED, {"role": "tool", "tool_call_id": "a", "content": "y"}]
    for request in (ask(prompt="What?", tools=cd.Tools([LOOK])), ask(messages=turns)):
        with pytest.raises(cd.CrossdraftError, match="chat template of plain-7B does not write tools"):
            target.prepare(request)


def test_the_question_of_a_conversation_is_the_users_last_one():
    turns = [user(text("x")), CALLED, {"role": "tool", "tool_call_id": "a", "content": "y"}]
    request = cd.Request(messages=turns)
    assert request.question == "x"
    assert cd.Request(messages=request.messages) == request
    assert request.without_pixels().messages == request.messages
