"""Other tools' profiles as graphs: planning without a model."""

from plait.graph.profiles.chain import profile_graph
from plait.graph.profiles.load import load_profile
from plait.graph.profiles.profile import Profile, ProfileEdge, ProfileNode, Way

__all__ = ["Profile", "ProfileEdge", "ProfileNode", "Way", "load_profile", "profile_graph"]
