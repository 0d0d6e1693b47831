"""Every head's network by name."""

from collections.abc import Mapping
from dataclasses import dataclass

from crossdraft.heads.event_medusa.network import DrafterMedusa, DrafterMedusaConfig
from crossdraft.heads.fast.network import Fast, FastConfig
from crossdraft.heads.glance.network import Glance, GlanceConfig
from crossdraft.heads.networks.base import Head, HeadConfig
from crossdraft.heads.networks.chimera import Chimera, ChimeraConfig
from crossdraft.heads.networks.dflash import DFlash, DFlashConfig
from crossdraft.heads.networks.dream import Dream, DreamConfig
from crossdraft.heads.networks.eagle import Eagle
from crossdraft.heads.networks.eagle3 import Eagle3, Eagle3Config
from crossdraft.heads.networks.eaglevlm import EagleVLM
from crossdraft.heads.networks.glide import Glide
from crossdraft.heads.networks.hivis import HiViS
from crossdraft.heads.networks.hydra import Hydra, HydraConfig, HydraPlus, HydraPlusConfig
from crossdraft.heads.networks.layers import DecoderConfig
from crossdraft.heads.networks.massv import MASSV, MASSVConfig
from crossdraft.heads.networks.medusa import Medusa
from crossdraft.heads.networks.recurrent import RecurrentConfig
from crossdraft.heads.networks.redrafter import ReDrafter
from crossdraft.heads.networks.specvlm import SpecVLM, SpecVLMConfig
from crossdraft.heads.networks.vispec import ViSpec, ViSpecConfig
from crossdraft.heads.pass_.network import LookaheadEmbeddings, PassConfig


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
    "event_medusa": Network(DrafterMedusa, DrafterMedusaConfig),
    "fast": Network(Fast, FastConfig),
    "glance": Network(Glance, GlanceConfig),
    "pass": Network(LookaheadEmbeddings, PassConfig),
}
