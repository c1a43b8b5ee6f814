"""The matrix: every architecture that Plait is tested on, small enough to be captured in seconds."""

from architecture import Architecture
from networks import NETWORKS
from perception_models import PERCEPTION_MODELS
from text_models import TEXT_MODELS

ARCHITECTURES: tuple[Architecture, ...] = (*TEXT_MODELS, *PERCEPTION_MODELS, *NETWORKS)


def architecture_named(name: str) -> Architecture:
    return next(a for a in ARCHITECTURES if a.name == name)
