"""A cluster from what a user passes as --cluster: "local:4" or the path of a TOML file."""

import re
import tomllib
from pathlib import Path

from pydantic import ValidationError

from plait.cluster.build import build_cluster
from plait.cluster.local import kind_here, local_cluster
from plait.cluster.problems import describe
from plait.cluster.suggestions import did_you_mean
from plait.cluster.tables import ClusterTables
from plait.cluster.topology import Cluster
from plait.errors import PlaitError


def load_cluster(spec: str) -> Cluster:
    """The cluster that `spec` names; raises PlaitError saying what is wrong with it.

    >>> len(load_cluster("local:4").devices)
    4
    """
    if spec == "local" or spec.startswith("local:"):
        return _local(spec)
    path = Path(spec)
    if path.is_file():
        return _from_file(path)
    if path.is_dir():
        raise PlaitError(f'cluster "{spec}" is a directory; name the TOML file in it, e.g. {spec}/cluster.toml')
    if path.suffix == ".toml" or len(path.parts) > 1:
        siblings = [str(file) for file in path.parent.glob("*.toml")] if path.parent.is_dir() else []
        raise PlaitError(
            f'cluster file "{spec}" was not found. {did_you_mean(spec, siblings)}Check the path, or use '
            "local:4 for four processes on this machine"
        )
    raise PlaitError(
        f'cluster "{spec}" is neither a file nor local:N; write the path of a TOML file, or local:4 for four '
        "processes on this machine"
    )


def parse_cluster(text: str, *, source: str, default_name: str = "cluster") -> Cluster:
    """The cluster that TOML `text` describes; `source` is what errors call it."""
    try:
        tables = ClusterTables.model_validate(tomllib.loads(text))
        return build_cluster(tables, default_name=default_name)
    except tomllib.TOMLDecodeError as error:
        raise PlaitError(
            f"{source} is not valid TOML: {error}; mend that line (text needs quotes, tables look like [[hosts]])"
        ) from None
    except ValidationError as error:
        raise PlaitError(f"{source}: {describe(error)}") from None
    except PlaitError as error:
        raise PlaitError(f"{source}: {error}") from None


def _from_file(path: Path) -> Cluster:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise PlaitError(f"{path} is not UTF-8 text, and TOML is; save it as UTF-8") from None
    except OSError as error:
        raise PlaitError(f"{path} cannot be read: {error.strerror}; check its permissions") from None
    return parse_cluster(text, source=str(path), default_name=path.stem)


def _local(spec: str) -> Cluster:
    number = spec.partition(":")[2]
    if not re.fullmatch(r"\d+", number, re.ASCII):
        raise PlaitError(
            f'cluster "{spec}" does not say how many processes to run; a whole number follows local: as in local:4'
        )
    return local_cluster(int(number), kind=kind_here())
