"""GRIFFIN (Hu et al. 2025): EAGLE with token-guided fusion before its layer and two outputs after it.

    the feature f(t), the token x(t+1)
      │  token-guided fusion
      │    z = fc([e; f])                              e = the token's embedding
      │    z + down(SiLU(up([n(n'(z)); n(e)])))        the token corrects z
      │  one decoder layer without a first norm, whose MLP is 2H wide at its end
      ├─ the first half   -> the target's LM head, d(t+2)
      └─ the second half  -> the next step's feature ("token-enhanced head")

One output predicts the token, the other the target's feature; EAGLE has one vector for both.
The modules are named as in the authors' files (hsj576/GRIFFIN, `model/cnets_griffin_1.py`). GRIFFIN's choice of
training positions is `keep_top` of `objective.Objective`.
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossdraft.heads.networks.autoregressive import Autoregressive
from crossdraft.heads.networks.base import SharedWeights
from crossdraft.heads.networks.layers import Attend, Attention, DecoderConfig, GatedMLP, RMSNorm


class GuidedMLP(nn.Module):
    """down(SiLU(up([norm(x); norm(e)]))), with one norm for both."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.eps)
        self.up_proj = nn.Linear(2 * config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, rows: Tensor, embeds: Tensor) -> Tensor:
        """[..., H] twice -> [..., H]."""
        pair = torch.cat((self.input_layernorm(rows), self.input_layernorm(embeds)), -1)
        return self.down_proj(F.silu(self.up_proj(pair)))


class TokenGuidedFusion(nn.Module):
    """Token-guided fusion of embeddings and features: z and its correction in the module's diagram."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size)
        self.mlp = GuidedMLP(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.eps)

    def forward(self, embeds: Tensor, features: Tensor) -> Tensor:
        """[..., H] twice -> [..., H]."""
        fused = self.fc(torch.cat((embeds, features), -1))
        return fused + self.mlp(self.post_attention_layernorm(fused), embeds)


class TwoOutputLayer(nn.Module):
    """A decoder layer without a first norm: [s; s] + MLP(norm(s)), where s is the attention's output."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.eps)
        self.mlp = GatedMLP(config.hidden_size, config.intermediate_size, 2 * config.hidden_size)

    def forward(self, stream: Tensor, attend: Attend) -> Tensor:
        """[B, n, H] -> [B, n, 2H]."""
        stream = stream + self.self_attn(stream, attend)
        return torch.cat((stream, stream), -1) + self.mlp(self.post_attention_layernorm(stream))


class Griffin(Autoregressive):
    """GRIFFIN's head; outputs are [..., 2H]."""

    owns_head = False

    def __init__(self, config: DecoderConfig, shared: SharedWeights) -> None:
        super().__init__(config, shared)
        self.fc = TokenGuidedFusion(config)
        self.layers = nn.ModuleList([TwoOutputLayer(config)])

    def decode(self, embeds: Tensor, features: Tensor, attend: Attend, step: int) -> Tensor:
        return cast("TwoOutputLayer", self.layers[0])(self.fc(embeds, features), attend)

    def logits(self, outputs: Tensor) -> Tensor:
        return self.lm_head(outputs[..., : self.config.hidden_size])

    def fed_back(self, outputs: Tensor) -> Tensor:
        return outputs[..., self.config.hidden_size :]

    def predicted_features(self, outputs: Tensor) -> Tensor:
        return self.fed_back(outputs)
