"""FramewiseEncoder: a clip's features, those frames first which a drafter reads as they come.

Such frames (`Needs.visual_frames`) are encoded each by itself, then the others at once. The features keep the bits that
they have when the clip is encoded whole: whether they do is found out when nobody waits, with noise, and until then,
and where they do not, the clip is encoded whole. (Which kernel adds up in which order follows from shapes, not from
values.)

Only on a CPU: there two frames take about twice as long as one. A GPU takes about as long for all frames of a clip.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutputWithPooling

from crossdraft.engine.arrivals import FrameFeatures, VisualFuture
from crossdraft.engine.encoded import UNREAD
from crossdraft.engine.prompt import Encoded

log = logging.getLogger(__name__)

PIXELS, STILLS = "pixel_values_videos", "pixel_values"
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}  # of the largest feature; a half-precision kernel may round
HALF_TOLERANCE = 2e-2
FRAMES = -4  # the dimension of pixels [1, F, 3, h, w], or of a row of images [F, 3, h, w]
Shape = tuple[tuple[int, ...], torch.dtype, int]  # of a frame's pixels, and the threads that compute
Split = tuple[tuple[int, ...], torch.dtype, int, tuple[int, ...]]  # of a clip's pixels; threads; frames that go first


@dataclass(frozen=True)
class Join:
    """A way to join the features of shares to those of the whole.

    Args:
        dim: along which they follow each other.
        tail: rows at the end of each that belong to the end of the clip, and are dropped of all but the last.
        listed: the model returns a list of them.
    """

    dim: int
    tail: int
    listed: bool

    def __call__(self, parts: Sequence[Tensor]) -> BaseModelOutputWithPooling:
        inner = [part.narrow(self.dim, 0, part.shape[self.dim] - self.tail) for part in parts[:-1]]
        whole: Any = torch.cat([*inner, parts[-1]], self.dim)
        made: Any = [whole] if self.listed else whole
        return BaseModelOutputWithPooling(pooler_output=made)


def find_join(whole: Tensor, parts: Sequence[Tensor], *, listed: bool) -> Join | None:
    """Find how to join features of two halves to those of the whole; `None` = they cannot be joined.

    >>> rows = torch.arange(6.0).view(1, 6, 1)
    >>> find_join(rows, (rows[:, :3], rows[:, 3:]), listed=False)
    Join(dim=1, tail=0, listed=False)
    >>> find_join(rows, (rows[:, :3] + 1, rows[:, 3:]), listed=False)
    """
    largest = float(whole.abs().max())
    tolerance = TOLERANCE.get(whole.dtype, HALF_TOLERANCE) * largest
    for dim in range(whole.ndim):
        tail = sum(part.shape[dim] for part in parts) - whole.shape[dim]
        if 0 <= tail < min(part.shape[dim] for part in parts) and len(parts) == 2:
            join = Join(dim, tail, listed)
            with suppress(RuntimeError):  # other dimensions differ
                made: Any = join(parts).pooler_output
                found: Tensor = made[0] if listed else made
                if found.shape == whole.shape and bool(((found - whole).abs() <= tolerance).all()):
                    return join
    return None


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
        self._splits: dict[Split, bool | None] = {}  # whether a clip in parts has the bits of all at once, once known

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
