"""ViSpec (Kang et al. 2025): the clip compressed to a few prefix rows, and a global visual vector in every text row."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from crossdraft.heads.networks.base import SharedWeights
from crossdraft.heads.networks.compressor import Resampler
from crossdraft.heads.networks.eagle import Eagle
from crossdraft.heads.networks.layers import DecoderConfig, PrefixKV
from crossdraft.specs import Count


@dataclass(frozen=True, kw_only=True)
class ViSpecConfig(DecoderConfig):
    """EAGLE's settings, and the number of queries: the last is the global vector, the others the prefix."""

    num_q: Count = 2


class ViSpec(Eagle):
    """EAGLE after a resampler of the target's visual embeddings.

    The outputs of all but the last query are the prefix, at the last positions of the visual piece. The last one's, g,
    enters with every feature f of the text: img_fc([f; g]). The two halves of that map are two layers here, so that
    g's part is computed once. They are initialised to return f: ViSpec starts as EAGLE.
    """

    config_class = ViSpecConfig

    def __init__(self, config: ViSpecConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        width = config.hidden_size
        self.adaptor = Resampler(width, config.num_q, config.heads)
        self.img_fc = nn.Linear(width, width)
        self.global_fc = nn.Linear(width, width, bias=False)
        nn.init.eye_(self.img_fc.weight)
        nn.init.zeros_(self.img_fc.bias)
        nn.init.zeros_(self.global_fc.weight)

    @property
    def visual_reads(self) -> tuple[int, ...]:
        return (0,)

    def prefix(self, visual: Mapping[int, Tensor], ids: Tensor, question: Mapping[int, Tensor]) -> PrefixKV:
        found, positions = self.adaptor(visual[0])
        key, value = self.layer.keys_values(found[:, :-1])
        return PrefixKV(key, value, positions[1:], visual[0].shape[1], global_feature=self.global_fc(found[:, -1:]))

    def add_global(self, features: Tensor, global_feature: Tensor | None) -> Tensor:
        fused = self.img_fc(features)
        return fused if global_feature is None else fused + global_feature
