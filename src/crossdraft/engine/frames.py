"""FramewiseEncoder: a clip's features frame by frame; those of frames which other clips showed are not made again.

Windows of a stream overlap: most frames of one were in the one before. Where a vision encoder reads each frame by
itself, a frame's features depend on its pixels alone, and are kept by the digest of these.

But for their last bits: a kernel may add up in another order when a batch holds more frames. So a frame is encoded by
itself, and several at once only in a number that was found to give each of them the same bits on this machine. Thereby
its features are the same, whatever was kept, and whatever is shown with it.

Where a drafter reads frames as they come (`Needs.visual_frames`), those are encoded first, each by itself, then the
others at once. Of a clip that is read whole the features keep the bits that they have whole: whether they do is found
out when nobody waits, with noise, and until then, and where they do not, the clip is encoded whole. (Which kernel adds
up in which order follows from shapes, not from values.)

Only on a CPU: there two frames take about twice as long as one. A GPU takes about as long for all frames of a clip.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from crossdraft.engine.arrivals import FrameFeatures, VisualFuture
from crossdraft.engine.content import ContentDigests
from crossdraft.engine.encoded import UNREAD
from crossdraft.engine.prompt import Encoded
from crossdraft.engine.workers.encode import PIXELS, Join, find_join

log = logging.getLogger(__name__)

STILLS = "pixel_values"
FRAMES = -4  # the dimension of pixels [1, F, 3, h, w], or of a row of images [F, 3, h, w]
Shape = tuple[tuple[int, ...], torch.dtype, int]  # of a frame's pixels, and the threads that compute
Split = tuple[tuple[int, ...], torch.dtype, int, tuple[int, ...]]  # of a clip's pixels; threads; frames that go first


@dataclass(frozen=True)
class KnownFrames:
    """Features of frames that were shown before; may be read in any thread.

    Args:
        namespace: whose requests showed them.
        digests: makes a frame's digest.
        find: the features behind a digest, `None` = there are none.
    """

    namespace: str
    digests: ContentDigests
    find: Callable[[bytes], Tensor | None]

    def digest(self, pixels: Tensor) -> bytes:
        """[16] bytes, of the namespace, of every pixel of a frame as the encoder reads it, and of the threads.

        Another number of threads may add up in another order, too.
        """
        where = {"namespace": self.namespace, "kind": "frame", "threads": torch.get_num_threads()}
        content = self.digests.of(where, pixels)
        if content is None:
            raise ValueError("A tensor has a digest.")
        return content.digest


@dataclass(frozen=True)
class ClipFeatures(Mapping[str, object]):
    """Encoder features of a clip, as `Target.encode` returns them, and of each frame.

    Args:
        encoded: of the clip.
        frames: features by digest, of those frames that are to be kept.
        count: frames of the clip.
        fresh: of these the ones that were encoded now.
    """

    encoded: Encoded
    frames: Mapping[bytes, Tensor]
    count: int
    fresh: int

    def __getitem__(self, kind: str) -> object:
        return self.encoded[kind]

    def __iter__(self) -> Iterator[str]:
        return iter(self.encoded)

    def __len__(self) -> int:
        return len(self.encoded)


class FramewiseEncoder:
    """See the module's text. May be used by several threads.

    Args:
        kind: `video`, or `image` of a model that reads a clip as a row of images.
        function: the model's function for features of that kind.
        parameters: names of its inputs.
        send: brings an input to where the model is, in its dtype.
    """

    def __init__(
        self, kind: str, function: Callable[..., Any], parameters: Sequence[str], send: Callable[[Tensor], Tensor]
    ) -> None:
        self._kind, self._pixels = kind, PIXELS if kind == "video" else STILLS
        self._function, self._parameters, self._send = function, parameters, send
        self._joins: dict[Shape, Join | None] = {}
        self._exact: dict[tuple[Shape, int], bool] = {}  # whether so many frames at once have the bits of each alone
        self._splits: dict[Split, bool | None] = {}  # whether a clip in parts has the bits of all at once, once known

    def __call__(
        self, inputs: Mapping[str, Tensor], known: KnownFrames | None, arrivals: VisualFuture | None = None
    ) -> ClipFeatures | None:
        """The features of a clip; `None` = the model does not read its frames one by one.

        Args:
            inputs: of the model, for one clip.
            known: what need not be encoded; `None` = nothing, and nothing is to be kept.
            arrivals: gets those that it wants as they are known.
        """
        pixels = self._clip(inputs)
        if pixels is None or (join := self._join(pixels)) is None:
            return None
        shown = pixels.split(1, dim=FRAMES)
        names: Sequence[object] = range(len(shown)) if known is None else [known.digest(frame) for frame in shown]
        parts: dict[object, Tensor] = {}
        if known is not None:
            found = {name: known.find(name) for name in names if isinstance(name, bytes)}
            parts |= {name: features for name, features in found.items() if features is not None}
        missing = {name: frame for name, frame in zip(names, shown, strict=True) if name not in parts}
        fresh = len(missing)
        if arrivals is not None and not join.tail:
            for number in arrivals.wanted(len(shown)):
                if (frame := missing.pop(names[number], None)) is not None:
                    parts[names[number]] = self._features(frame)[0].clone()
                arrivals.add_frame(FrameFeatures(number, len(shown), _rows(parts[names[number]])))
        parts |= zip(missing, self._encode(list(missing.values()), join), strict=True)
        encoded = {self._kind: join([parts[name] for name in names])}
        kept = {name: features for name, features in parts.items() if isinstance(name, bytes)}
        return ClipFeatures(encoded, kept, len(shown), fresh)

    def in_parts(self, inputs: Mapping[str, Tensor], arrivals: VisualFuture) -> Encoded | None:
        """The features of a clip, which have the bits of all frames at once; `None` = encode it so.

        Args:
            inputs: as above.
            arrivals: gets those frames first that it wants.
        """
        pixels = self._clip(inputs)
        if pixels is None or not (wanted := arrivals.wanted(pixels.shape[FRAMES])):
            return None
        split = tuple(pixels.shape), pixels.dtype, torch.get_num_threads(), tuple(wanted)
        if not self._splits.setdefault(split):
            return None
        return {self._kind: self._joined_parts(pixels, wanted, arrivals.add_frame)}

    def try_parts(self) -> bool:
        """Find out whether one of the clips that were to be encoded in parts may be, and is not known yet.

        It takes about as long as two such clips. Where it fails, as for want of memory, that clip is encoded whole.

        Returns:
            whether there was one.
        """
        splits = self._splits.copy()  # another thread may ask for another one
        split = next((split for split, known in splits.items() if known is None), None)
        if split is None:
            return False
        shape, dtype, threads, wanted = split
        before, same = torch.get_num_threads(), False
        torch.set_num_threads(threads)
        try:
            same = self._same_bits(_noise(shape).to(dtype), wanted)
        except Exception:
            log.exception("A clip of shape %s could not be encoded in parts; such clips are encoded whole.", shape)
        finally:
            torch.set_num_threads(before)
        self._splits[split] = same
        log.debug("Frames %s first, bits of all %s at once: %s.", wanted, shape, same)
        return True

    def _same_bits(self, pixels: Tensor, wanted: Sequence[int]) -> bool:
        join = self._join(pixels)
        if join is None or join.tail:
            return False
        whole, parts = self._run(pixels).pooler_output, self._joined_parts(pixels, wanted).pooler_output
        whole, parts = (list(one) if join.listed else [one] for one in (whole, parts))
        return all(map(torch.equal, whole, parts))

    def _joined_parts(
        self, pixels: Tensor, wanted: Sequence[int], tell: Callable[[FrameFeatures], None] = lambda frame: None
    ) -> Any:
        """The features of frames that are encoded one by one, the `wanted` ones, and of the others at once."""
        join = self._join(pixels)
        if join is None:
            raise ValueError("These frames are not encoded one by one.")
        shown, parts = pixels.split(1, dim=FRAMES), dict[int, Tensor]()
        for number in wanted:
            parts[number] = self._features(shown[number])[0].clone()
            tell(FrameFeatures(number, len(shown), _rows(parts[number])))
        others = [number for number in range(len(shown)) if number not in parts]
        if others:
            parts |= zip(others, self._at_once([shown[number] for number in others], join), strict=True)
        return join([parts[number] for number in range(len(shown))])

    def _clip(self, inputs: Mapping[str, Tensor]) -> Tensor | None:
        """The pixels of the one clip that is read by these inputs; `None` = they are none."""
        if [name for name in self._parameters if name in inputs] != [self._pixels]:
            return None
        pixels = inputs[self._pixels]
        return pixels if pixels.ndim in (4, 5) and pixels.shape[:-4].numel() == 1 else None

    def _encode(self, frames: Sequence[Tensor], join: Join) -> list[Tensor]:
        """The features of each frame, with the bits that it has alone."""
        if not frames:
            return []
        key = _shape(frames[0]), len(frames)
        if self._exact.get(key):
            return self._at_once(frames, join)
        found = [self._features(frame)[0].clone() for frame in frames]
        if len(frames) > 1 and not join.tail and key not in self._exact:
            self._exact[key] = all(map(torch.equal, found, self._at_once(frames, join)))
            log.debug("%d frames at once have the bits of each alone: %s.", len(frames), self._exact[key])
        return found

    def _at_once(self, frames: Sequence[Tensor], join: Join) -> list[Tensor]:
        whole = self._features(torch.cat(list(frames), dim=FRAMES))[0]
        return [part.clone() for part in whole.chunk(len(frames), join.dim)]

    def _features(self, pixels: Tensor) -> list[Tensor]:
        """Compute the features that replace placeholders: one tensor, or one for each clip."""
        pooled = self._run(pixels).pooler_output
        return [pooled] if isinstance(pooled, Tensor) else list(pooled)

    def _run(self, pixels: Tensor) -> Any:
        return self._function(**{self._pixels: self._send(pixels)}, return_dict=True)

    def _join(self, pixels: Tensor) -> Join | None:
        """Find how to join features of frames of that shape to a clip's; `None` = they cannot be joined."""
        key = _shape(pixels)
        if key not in self._joins:
            self._joins[key] = self._find_join(pixels)
        return self._joins[key]

    def _find_join(self, pixels: Tensor) -> Join | None:
        """It is tried with two frames of noise."""
        noise = _noise((*pixels.shape[:-4], 2, *pixels.shape[-3:]))
        try:
            output = self._run(noise)
            parts = [self._features(frame) for frame in noise.split(1, dim=FRAMES)]
        except (RuntimeError, ValueError) as error:
            log.debug("An encoder does not take one frame: %s", error)
            return None
        further = [
            name for name, value in output.items() if name not in (*UNREAD, "pooler_output") and value is not None
        ]
        listed = not isinstance(output.pooler_output, Tensor)
        whole = list(output.pooler_output) if listed else [output.pooler_output]
        if further or not len(whole) == len(parts[0]) == len(parts[1]) == 1:
            return None
        return find_join(whole[0], [part[0] for part in parts], listed=listed)


def _noise(shape: Sequence[int]) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def _rows(part: Tensor) -> Tensor:
    """[n, E] the features of a frame."""
    return part.reshape(-1, part.shape[-1])


def _shape(pixels: Tensor) -> Shape:
    return tuple(pixels.shape[-3:]), pixels.dtype, torch.get_num_threads()
