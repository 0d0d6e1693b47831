"""A walk-through in cells: ask, compare, train a head, serve. Half a minute on two CPU cores.

Open it in an editor that knows `# %%` cells (VS Code, Spyder, PyCharm, Jupyter with jupytext), or run it as it is:

    python examples/walkthrough.py [FOLDER]

It writes into FOLDER, by default a temporary one. It needs the extra `all`, the laboratory, and the `openai` client for
the last part.
"""

# %% [markdown]
# ## A clip
# A scene of the synthetic road world that the reference pair has not seen: a video for the target, events for
# the drafter.

# %%
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import crossdraft as cd
from crossdraft.cli.main import main
from crossdraft_lab.scenes import make_scene, split_seeds, write_clip

folder = Path(sys.argv[1] if len(sys.argv) == 2 else tempfile.mkdtemp(prefix="crossdraft-"))
clip = write_clip(make_scene(split_seeds("test")[3]), folder)
print(clip.video, clip.events)

# %% [markdown]
# ## Ask
# The drafter reads the events and drafts while the target still reads the video. Each piece of the answer has its
# origin. In a notebook, `answer` on a line of its own is drawn: its text by origin, and both models' timelines.

# %%
request = cd.Request("What should the driver watch for?", clip.video, clip.events)
options = cd.Options(cache_bytes=0)  # else a second question about the clip would find it in the prefix cache
engine = cd.Engine.load("reference", options=options)
engine.generate(request)  # warms up
answer = engine.generate(request)
for piece in answer.pieces:
    print(f"{piece.origin:>8}  {piece.text!r}")
print(f"{answer.stats.tau:.1f} tokens a verify pass, hidden share {answer.stats.hidden_share or 0:.0%}")

# %%
answer  # noqa: B018 - a notebook draws it

# %% [markdown]
# ## Compare
# The target alone, by the same engine, writes the same tokens. Three answers each, in turn, on this machine as it
# is now; `crossdraft bench` measures properly.


# %%
def median_ms(answers: list[cd.Answer]) -> float:
    """Median time of a whole answer."""
    return statistics.median(one.stats.total_s for one in answers) * 1e3


pairs = [(engine.generate(request), engine.alone(request)) for _ in range(3)]
engine.close()
assert all(together.tokens == alone.tokens for together, alone in pairs)
together, alone = (median_ms(list(answers)) for answers in zip(*pairs, strict=True))
print(f"the same {len(answer.tokens)} tokens: {together:.0f} ms with the drafter, {alone:.0f} ms by the target alone")

# %% [markdown]
# ## Train a head
# A head needs no events: it reads the target's features, and learns from the target's own answers. Two scenes and forty
# steps show how it goes, in seconds; a head worth having takes a thousand of each, and some minutes.


# %%
def crossdraft(*arguments: object) -> None:
    """The command line, as one would type it."""
    print("$ crossdraft", *arguments)
    assert main([str(one) for one in arguments]) == 0


crossdraft("capture", folder / "capture", "--clips", 2, "--prompts", 8, "--workers", 0, "--device", "cpu")
small = ("optim.steps=40", "optim.decay_steps=0", "optim.warmup_steps=5", "optim.clips=2")
crossdraft("train", "medusa", *small, "--capture", folder / "capture", "--out", folder / "medusa", "--device", "cpu")

# %% [markdown]
# It drafts, and what it drafts badly is refused: the answer stays the target's own.

# %%
with cd.Engine.load("reference", f"medusa:dir={folder / 'medusa' / 'head'}") as engine:
    drafted = engine.generate(request)
assert drafted.tokens == answer.tokens
print(f"{drafted.stats.tau:.2f} tokens a verify pass after 40 steps")

# %% [markdown]
# ## Serve
# The same pair as an OpenAI-compatible server, on loopback, and a stock client. Port 0 is any free one; the server's
# first line says which.

# %%
from openai import OpenAI

command = [sys.executable, "-m", "crossdraft", "serve", "--port", "0", "--media-root", str(folder)]
with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
    try:
        assert server.stdout is not None
        address = re.findall(r"http://\S+", server.stdout.readline())[0]
        client = OpenAI(base_url=f"{address}/v1", api_key="none")
        content = [
            {"type": "video_url", "video_url": {"url": f"file:{clip.video.name}"}},
            {"type": "event_url", "event_url": {"url": f"file:{clip.events.name}"}},
            {"type": "text", "text": request.prompt},
        ]
        reply = client.chat.completions.create(model="reference", messages=[{"role": "user", "content": content}])
    finally:
        server.terminate()  # it drains: running answers end first
served = reply.choices[0].message.content
assert served == answer.text
print(f"{address} says: {served} (exit status {server.returncode})")
