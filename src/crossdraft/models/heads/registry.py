"""Every head's network by name."""

from collections.abc import Mapping
from dataclasses import dataclass

from crossdraft.models.heads.base import Head, HeadConfig
from crossdraft.models.heads.chimera import Chimera, ChimeraConfig
from crossdraft.models.heads.cross import Cross, CrossConfig
from crossdraft.models.heads.dflash import DFlash, DFlashConfig
from crossdraft.models.heads.dream import Dream, DreamConfig
from crossdraft.models.heads.eagle import Eagle
from crossdraft.models.heads.eagle3 import Eagle3, Eagle3Config
from crossdraft.models.heads.eaglevlm import EagleVLM
from crossdraft.models.heads.fast import Fast, FastConfig
from crossdraft.models.heads.glance import Glance, GlanceConfig
from crossdraft.models.heads.glide import Glide
from crossdraft.models.heads.hivis import HiViS
from crossdraft.models.heads.hydra import Hydra, HydraConfig, HydraPlus, HydraPlusConfig
from crossdraft.models.heads.massv import MASSV, MASSVConfig
from crossdraft.models.heads.medusa import Medusa
from crossdraft.models.heads.parts import DecoderConfig
from crossdraft.models.heads.pass_ import LookaheadRows, PassConfig
from crossdraft.models.heads.recurrent import RecurrentConfig
from crossdraft.models.heads.redrafter import ReDrafter
from crossdraft.models.heads.specvlm import SpecVLM, SpecVLMConfig
from crossdraft.models.heads.vispec import ViSpec, ViSpecConfig


@dataclass(frozen=True)
class Network:
    """A network and the configuration that it is made from."""

    kind: type[Head]
    config: type[HeadConfig]


NETWORKS: Mapping[str, Network] = {
    "eagle": Network(Eagle, DecoderConfig),
    "eagle3": Network(Eagle3, Eagle3Config),
    "glide": Network(Glide, DecoderConfig),
    "chimera": Network(Chimera, ChimeraConfig),
    "dream": Network(Dream, DreamConfig),
    "dflash": Network(DFlash, DFlashConfig),
    "hivis": Network(HiViS, DecoderConfig),
    "vispec": Network(ViSpec, ViSpecConfig),
    "eaglevlm": Network(EagleVLM, DecoderConfig),
    "specvlm": Network(SpecVLM, SpecVLMConfig),
    "massv": Network(MASSV, MASSVConfig),
    "medusa": Network(Medusa, RecurrentConfig),
    "hydra": Network(Hydra, HydraConfig),
    "hydra++": Network(HydraPlus, HydraPlusConfig),
    "redrafter": Network(ReDrafter, RecurrentConfig),
    "event_medusa": Network(Cross, CrossConfig),
    "fast": Network(Fast, FastConfig),
    "glance": Network(Glance, GlanceConfig),
    "pass": Network(LookaheadRows, PassConfig),
}
