"""A rank holds its own stages' tensors and no others, with the numbers of the whole model or of a file."""

import gc
import json
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from comparison import GPT2, Case, adamw, make_case, make_plan, train_on_threads
from in_process import ThreadTransport, on_threads
from materialise_memory import Alone, World, mean_square
from safetensors.torch import save_file
from torch import Tensor, nn

import plait
from plait.errors import PlaitError
from plait.graph import build_graph
from plait.graph.cut import cut
from plait.graph.stage import build_stage
from plait.jobs import load_job
from plait.plan import Plan
from plait.run import Trainer
from plait.run.materialise import Construction, Origin, captured_tensors, construct, load_weights, origin_of


def seeded(build: Callable[[], nn.Module], seed: int = 5) -> Callable[[], nn.Module]:
    def whole() -> nn.Module:
        torch.manual_seed(seed)
        return build().double()

    return whole


def job_model(name: str) -> tuple[Callable[[], nn.Module], Any]:
    job = load_job(name)
    return seeded(job.model), next(iter(job.batches(4, 0)))


def llama() -> tuple[Callable[[], nn.Module], Any]:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "use_cache": False}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)
    tokens = torch.randint(0, 64, (4, 8))
    return seeded(lambda: transformers.LlamaForCausalLM(config)), {"input_ids": tokens, "labels": tokens}


@pytest.mark.parametrize("model", [lambda: job_model(GPT2), llama], ids=["gpt2", "llama"])
def test_every_stage_has_the_whole_models_numbers_and_only_its_own(model: Any) -> None:
    build, batch = model()
    construction = construct(build)
    captured = build_graph(construction.module, batch)
    origin = origin_of(construction, captured, None)
    expected = build()
    numbers = {**dict(expected.named_parameters()), **dict(expected.named_buffers())}
    atoms = len(captured.graph.atoms)
    seen: set[str] = set()
    for part in cut(captured.graph, [atoms // 3, 2 * atoms // 3]):
        code = build_stage(captured, part)
        assert origin.fill(code.modules, {}) == {}
        own = {**code.named_parameters(), **code.named_buffers()}
        assert set(own) == {parameter.name for parameter in part.parameters}
        for name, tensor in own.items():
            assert torch.equal(tensor, numbers[name]), name
            assert isinstance(tensor, nn.Parameter) == isinstance(numbers[name], nn.Parameter)
        seen |= set(own)
    assert seen == set(numbers) - set(captured.unused)
    assert all(construction.tape.holds(tensor) for tensor in captured_tensors(captured).values()), "no other was made"


def test_one_of_four_stages_takes_the_memory_of_one() -> None:
    script = Path(__file__).parent / "materialise_memory.py"
    found = subprocess.run([sys.executable, script], check=True, capture_output=True, text=True, timeout=150)
    memory = json.loads(found.stdout)
    assert memory["whole"] > memory["model"], "the whole model was not built"
    # Beyond its own part a rank needs scratch memory while it draws, a few parameters at a time.
    assert memory["whole"] - memory["deferred"] > 0.6 * (memory["model"] - memory["held"])


def test_a_module_given_whole_is_not_kept() -> None:
    module = nn.Sequential(*(nn.Linear(6, 6) for _ in range(4)))
    batch = torch.zeros(4, 6)
    tensors = [weakref.ref(layer.weight) for layer in module]
    model = build_graph(module, batch, loss=mean_square)
    plan = make_plan(Case(module, model, (batch,)), (1, 1), 2)
    trainer = Trainer(model, plan, Alone(World(2), 1), optimizer=adamw, origin=Origin())
    own = {id(tensor) for tensor in trainer.state().values()}
    del module, model
    gc.collect()
    alive = [tensor() for tensor in tensors if tensor() is not None]
    assert 0 < len(alive) < len(tensors)
    assert {id(tensor) for tensor in alive} <= own


class Tied(nn.Module):
    """Tied weights, a saved buffer, one that is not saved, a constant, a weight the loss ignores."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 6)
        self.middle = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.BatchNorm1d(6), nn.Linear(6, 6))
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.words.weight
        self.ignored = nn.Linear(2, 2)
        self.register_buffer("scale", torch.rand(6))
        self.register_buffer("shift", torch.arange(6.0) / 3, persistent=False)
        self.constant = torch.linspace(0.5, 1.5, 6, dtype=torch.float64)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        hidden = self.middle(self.words(tokens) * self.scale + self.shift)
        return F.cross_entropy(self.head(hidden.tanh() * self.constant), targets)


@cache
def tied_case() -> Case:
    torch.manual_seed(0)
    batches = [{"tokens": torch.randint(0, 11, (8,)), "targets": torch.randint(0, 11, (8,))} for _ in range(2)]
    return make_case(seeded(Tied)(), batches)


class OneAtATime(Origin):
    """PyTorch's generator is one per process, and here ranks are threads."""

    lock = threading.Lock()

    def fill(self, modules: Any, others: Mapping[str, Tensor]) -> dict[str, Tensor]:
        with self.lock:
            return super().fill(modules, others)


def train_from(
    construction: Construction, plan: Plan, weights: Path | None = None
) -> tuple[list[float], dict[str, Tensor]]:
    case = tied_case()
    model = build_graph(construction.module, case.batches[0], name="case")
    found = origin_of(construction, model, weights)
    origin = OneAtATime(found.weights, found.tape, found.draw)

    def work(transport: ThreadTransport) -> tuple[list[float], dict[str, Tensor]]:
        trainer = Trainer(model, plan, transport, optimizer=adamw, origin=origin)
        return [trainer.step(batch) for batch in case.batches], trainer.state()

    results = on_threads(plan.num_ranks, work)
    return results[0][0], {name: tensor for _, state in results for name, tensor in state.items()}


def assert_trains_like_whole(losses: list[float], state: dict[str, Tensor], plan: Plan) -> None:
    expected, _ = train_on_threads(tied_case(), plan, optimizer=adamw)
    assert losses == expected.losses
    assert set(state) == set(expected.state)
    for name, tensor in expected.state.items():
        assert torch.equal(state[name], tensor), name


@pytest.mark.parametrize("layout", [(1, 1, 1), (2, 1)], ids=str)
def test_training_from_deferred_construction_equals_training_from_the_whole(layout: tuple[int, ...]) -> None:
    plan = make_plan(tied_case(), layout, 2)
    assert_trains_like_whole(*train_from(construct(seeded(Tied)), plan), plan)


def on_meta() -> nn.Module:
    with torch.device("meta"):
        module = Tied().double()
    module.shift = (torch.arange(6.0) / 3).double()  # its author knows what no file has
    module.constant = torch.linspace(0.5, 1.5, 6, dtype=torch.float64)
    return module


def save_single(state: dict[str, Tensor], folder: Path) -> Path:
    save_file(state, folder / "weights.safetensors")
    return folder / "weights.safetensors"


def save_sharded(state: dict[str, Tensor], folder: Path) -> Path:
    shards = {"a.safetensors": list(state)[::2], "b.safetensors": list(state)[1::2]}
    for file, names in shards.items():
        save_file({name: state[name] for name in names}, folder / file)
    places = {name: file for file, names in shards.items() for name in names}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder


def save_torch(state: dict[str, Tensor], folder: Path) -> Path:
    torch.save(state, folder / "weights.pt")
    return folder / "weights.pt"


@pytest.mark.parametrize("save", [save_single, save_sharded, save_torch])
@pytest.mark.parametrize("build", [seeded(Tied, seed=99), on_meta], ids=["function", "meta"])
def test_training_from_a_file_equals_training_from_its_numbers(save: Any, build: Any, tmp_path: Path) -> None:
    state = tied_case().module.state_dict()
    del state["words.weight"]  # the other name of a tied weight will do
    path = save({name: tensor.clone() for name, tensor in state.items()}, tmp_path)
    plan = make_plan(tied_case(), (1, 1, 1), 2)
    construction = construct(on_meta() if build is on_meta else build)
    assert_trains_like_whole(*train_from(construction, plan, path), plan)


def test_a_whole_model_takes_weights_too(tmp_path: Path) -> None:
    path = save_torch(tied_case().module.state_dict(), tmp_path)
    module = seeded(Tied, seed=99)()
    model = build_graph(module, tied_case().batches[0])
    load_weights(model, path)
    for name, tensor in tied_case().module.state_dict().items():
        assert torch.equal(module.state_dict()[name], tensor)
    plan = make_plan(tied_case(), (1, 1, 1), 2)
    assert_trains_like_whole(*train_from(Construction(seeded(Tied, seed=99)()), plan, path), plan)


def test_weights_cost_no_random_numbers(tmp_path: Path) -> None:
    construction = construct(seeded(Tied))
    model = build_graph(construction.module, tied_case().batches[0])
    path = save_torch(tied_case().module.state_dict(), tmp_path)
    assert not origin_of(construction, model, path).draw
    assert origin_of(construction, model, None).draw


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.delenv("RANK", raising=False)
    return make_plan(tied_case(), (1,), 2)


def test_parallelize_takes_a_function(alone: Plan) -> None:
    trainer = plait.parallelize(seeded(Tied), alone, optimizer=adamw)
    try:
        losses = [trainer.step(batch) for batch in tied_case().batches]
    finally:
        trainer.close()
    assert_trains_like_whole(losses, trainer.state(), alone)


def test_parallelize_takes_weights_and_names_what_it_left_alone(alone: Plan, tmp_path: Path) -> None:
    path = save_torch({**tied_case().module.state_dict(), "pooler.weight": torch.ones(2)}, tmp_path)
    with pytest.warns(UserWarning, match=r"1 tensors there are not the model's and were left alone: pooler.weight"):
        trainer = plait.parallelize(seeded(Tied, seed=99), alone, optimizer=adamw, weights=path)
    try:
        losses = [trainer.step(batch) for batch in tied_case().batches]
    finally:
        trainer.close()
    assert_trains_like_whole(losses, trainer.state(), alone)


def test_a_model_on_meta_needs_numbers_from_somewhere(alone: Plan, tmp_path: Path) -> None:
    with pytest.raises(PlaitError, match=r"words.weight is on the meta device.*Give weights=FILE, or pass a function"):
        plait.parallelize(on_meta(), alone, optimizer=adamw)
    path = save_torch(tied_case().module.state_dict(), tmp_path)
    for name in ("shift", "constant"):
        module = on_meta()
        setattr(module, name, getattr(module, name).to("meta"))
        message = rf"{name} is on the meta device .*the weights do not hold it. Pass a function that builds"
        with pytest.raises(PlaitError, match=message):
            plait.parallelize(module, alone, optimizer=adamw, weights=path)
