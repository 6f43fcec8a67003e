"""What a start file is made from: request, usual settings of recipes, text helpers."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from agent.base.value import Value

if TYPE_CHECKING:
    from collections.abc import Mapping

WIDTH = 96


class Request(Value, frozen=True):
    """What a start file is wanted for."""

    recipe: str
    nodes: int
    gpus: int
    variant: str = ""
    """The container of Slurm, or the kind of Kubernetes and RunPod."""
    image: str = ""
    """Another image than the recipe's usual one."""
    agent: str = ""
    """Path of the one file; '' is the platform's usual place."""
    url: str = ""
    sha256: str = ""
    """Where a node fetches the one file instead, and its digest."""
    volume: str = ""
    """Id of a network volume of RunPod."""

    @property
    def preset(self) -> Preset:
        """Return the usual settings of the recipe."""
        return PRESETS[self.recipe]

    @property
    def container_image(self) -> str:
        """Return the image to run in."""
        return self.image or self.preset.image

    def enter_code(self) -> tuple[str, ...]:
        """Return the shell command that enters the folder in which the job starts, if any."""
        return (f"cd {self.preset.code}",) if self.preset.code else ()


class StartFile(Value, frozen=True):
    """A file to write, and what to do next."""

    name: str
    text: str
    next_steps: tuple[str, ...]
    is_program: bool = False


class Checkout(Value, frozen=True):
    """A framework that runs from a clone of its repository."""

    url: str
    tag: str
    folder: str

    def command(self, code: str) -> str:
        """Return the shell command that clones it unless it is there."""
        target = f'"{code}/{self.folder}"' if "$" in code else f"{code}/{self.folder}"
        clone = f"git clone --quiet --depth 1 --branch {self.tag} {self.url} {target}"
        return f"test -e {target} || {clone}"


class Preset(Value, frozen=True):
    """The usual image, model, data and arguments of a recipe.

    `{data}` and `{code}` stand for the folders of data and checkouts on a platform.
    """

    about: str
    image: str
    checkout: Checkout | None = None
    install: tuple[str, ...] = ()
    """Shell commands that install the framework into the image."""
    code: str = ""
    """The folder of the image in which the job starts."""
    model: str = ""
    train: str = ""
    evaluate: str = ""
    prepare: str = ""
    args: tuple[str, ...] = ()
    services: str = ""
    """An example's file for AGENT_SERVICES."""
    reward: str = ""
    resumes: bool = True


_VERL = Checkout("https://github.com/volcengine/verl", "v0.7.1", "verl")
_NVIDIA = "nvcr.io/nvidia/pytorch:25.11-py3"
_PREFERENCES = "OpenRLHF/preference_dataset_mixture2_and_safe_pku"
_WITHOUT_CONFLICTS = "pip uninstall --quiet --yes xgboost transformer_engine flash_attn pynvml"
_OPENRLHF = (_WITHOUT_CONFLICTS, "pip install --quiet 'openrlhf[vllm]==0.11.2'")
_OPENRLHF_ARGS = (
    *("--data.input_key prompt", "--data.apply_chat_template", "--data.max_len 8192"),
    *("--rollout.max_new_tokens 6144", "--actor.adam.lr 5e-7", "--algo.kl.init_coef 1e-3"),
    "--ckpt.save_hf",
)
_VERL_ARGS = (
    *("data.max_prompt_length=512", "data.max_response_length=1024"),
    *("actor_rollout_ref.actor.optim.lr=1e-6", "trainer.total_epochs=15"),
)
_GSM8K = (
    "test -e {data}/gsm8k/train.parquet ||"
    " python3 {code}/verl/examples/data_preprocess/gsm8k.py --local_save_dir {data}/gsm8k"
)


def _verl(about: str, *more: str) -> Preset:
    return Preset(
        about=about,
        image="verlai/verl:vllm017.latest",
        checkout=_VERL,
        model="Qwen/Qwen2.5-7B-Instruct",
        train="{data}/gsm8k/train.parquet",
        evaluate="{data}/gsm8k/test.parquet",
        prepare=_GSM8K,
        args=(*_VERL_ARGS, *more),
    )


def _openrlhf(
    about: str, train: str, *args: str, model: str = "Qwen/Qwen2.5-7B-Instruct"
) -> Preset:
    return Preset(
        about=about, image=_NVIDIA, install=_OPENRLHF, model=model, train=train, args=args
    )


def _search_r1(about: str, *more: str) -> Preset:
    return Preset(
        about=about,
        image="you/search-r1:latest",
        code="/opt/Search-R1",
        model="Qwen/Qwen2.5-7B",
        train="{data}/nq_search/train.parquet",
        evaluate="{data}/nq_search/test.parquet",
        args=(
            "retriever.url=http://127.0.0.1:8000/retrieve",
            "data.shuffle_train_dataloader=True",
            "actor_rollout_ref.actor.optim.lr=1e-6",
            *more,
        ),
        services="search-r1.toml",
        resumes=False,
    )


PRESETS: Mapping[str, Preset] = {
    "rehearsal": Preset(
        about="The rehearsal: a small GRPO on CPUs that takes every path that a real job takes",
        image="rayproject/ray:2.52.0-py311",
    ),
    "verl-grpo": _verl("GRPO with verl on gsm8k"),
    "verl-ppo": _verl("PPO with verl on gsm8k", "critic.optim.lr=1e-5"),
    "openrlhf-grpo": _openrlhf("GRPO with OpenRLHF", "zhuzilin/dapo-math-17k", *_OPENRLHF_ARGS),
    "openrlhf-ppo": _openrlhf("PPO with OpenRLHF", "zhuzilin/dapo-math-17k", *_OPENRLHF_ARGS),
    "openrlhf-m-grpo": Preset(
        about="GRPO with OpenRLHF-M and its own reward server",
        image="you/openrlhf-m:latest",
        code="/opt/OpenRLHF-M",
        model="Qwen/Qwen2.5-VL-3B-Instruct",
        train="{data}/mathv60k_message.jsonl",
        prepare=(
            "test -e {data}/mathv60k_message.jsonl || python3 /opt/OpenRLHF-M/examples/scripts/"
            "downloaders/download_mathv60k.py --root_dir {data}"
        ),
        args=(
            *("--max_samples 1000", "--prompt_max_len 4096", "--generate_max_len 8000"),
            *("--num_episodes 2", "--actor_learning_rate 5e-7", "--normalize_reward"),
            *("--temperature 1.0", "--save_hf_ckpt"),
        ),
        reward=(
            "python3 -m openrlhf.models.remote_rm.math_verifier --dataset"
            " {data}/mathv60k_message.jsonl --input_key message --prompt-template chatml"
        ),
    ),
    "search-r1-ppo": _search_r1("PPO with Search-R1", "critic.optim.lr=1e-5"),
    "search-r1-grpo": _search_r1("GRPO with Search-R1"),
    "openrlhf-sft": _openrlhf(
        "Supervised fine-tuning with OpenRLHF",
        "Open-Orca/OpenOrca",
        *("--data.input_key question", "--data.output_key response"),
        model="Qwen/Qwen2.5-7B",
    ),
    "openrlhf-rm": _openrlhf(
        "A reward model with OpenRLHF", _PREFERENCES, "--data.apply_chat_template"
    ),
    "openrlhf-dpo": _openrlhf("DPO with OpenRLHF", _PREFERENCES, "--data.apply_chat_template"),
    "trl-grpo": Preset(
        about="GRPO with TRL, by torchrun",
        image=_NVIDIA,
        install=("pip install --quiet 'trl==1.16.0'",),
        model="Qwen/Qwen2.5-0.5B-Instruct",
        train="{data}/train.jsonl",
    ),
}
"""One for each recipe, in the order of `pod-agent recipes`."""


class Folders(Value, frozen=True):
    """Where things are on a platform."""

    data: str
    code: str
    checkpoints: str
    logs: str = ""
    models: str = ""
    is_shared: bool = True
    """Whether every node sees the same `data`."""


def setup_commands(request: Request, folders: Folders) -> tuple[str, ...]:
    """Return the shell commands that must have run in the container before the agent starts."""
    checkout = request.preset.checkout
    clone = () if checkout is None else (checkout.command(folders.code),)
    return (*clone, *request.preset.install)


def job_variables(request: Request, folders: Folders, *, restarted: bool) -> dict[str, str]:
    """Return the variables of the job; `restarted`: the platform starts a lost node again."""
    preset, recipe = request.preset, request.recipe
    if recipe == "rehearsal":
        return {"AGENT_LOG_DIR": folders.logs} if folders.logs else {}
    known = {"data": folders.data, "code": folders.code}
    code = f"{folders.code}/{preset.checkout.folder}" if preset.checkout is not None else ""
    found = {
        "AGENT_JOB": recipe,
        "AGENT_MODEL": preset.model,
        "AGENT_TRAIN_DATA": preset.train.format_map(known),
        "AGENT_EVAL_DATA": preset.evaluate.format_map(known),
        "AGENT_CHECKPOINTS": f"{folders.checkpoints}/{recipe}",
        "AGENT_JOB_ARGS": " ".join(preset.args),
        "AGENT_JOB_RETRIES": "3" if restarted and preset.resumes else "",
        "AGENT_REWARD": preset.reward.format_map(known),
        "AGENT_PREPARE" if folders.is_shared else "AGENT_PREPARE_EACH": preset.prepare.format_map(
            known
        ),
        "AGENT_LOG_DIR": folders.logs,
        "PYTHONPATH": code,
        "HF_HOME": folders.models,
    }
    return {name: text for name, text in found.items() if text}


# --- text --------------------------------------------------------------------------------------

_TEMPLATES = Path(__file__).parent / "templates"
_CONDITION = re.compile(r"^\{\{if (\w+)\}\}\n(.*?)^\{\{end\}\}\n", re.MULTILINE | re.DOTALL)
_VALUE = re.compile(r"^( *)\{\{(\w+)\}\}\n|\{\{(\w+)\}\}", re.MULTILINE)
_WRAPPED = re.compile(r"(?:^ *#~.*\n)+", re.MULTILINE)


def fill(template: str, request: Request, **values: object) -> str:
    """Return a template with the values of the request and these.

    A value alone on its line gets that line's indentation, and leaves no line if it is empty. The
    lines from `{{if NAME}}` to `{{end}}` stay if that value is not empty. Comments after `#~` are
    wrapped.
    """
    recipe, nodes, gpus = request.recipe, request.nodes, request.gpus
    values = {
        "recipe": recipe,
        "nodes": nodes,
        "workers": nodes - 1,
        "gpus": gpus,
        "image": request.container_image,
        "url": request.url,
        "sha256": request.sha256,
        "about": request.preset.about,
        "recipe_line": f"pod-agent recipe {recipe} --nodes {nodes} --gpus {gpus}",
        **values,
    }

    def value(found: re.Match[str]) -> str:
        if found[3]:
            return str(values[found[3]])
        text = str(values[found[2]]).rstrip("\n")
        return textwrap.indent(text, found[1]) + "\n" if text else ""

    def wrapped(found: re.Match[str]) -> str:
        before, _, rest = found[0].partition("#~")
        lines = [line.strip() for line in rest.split("#~")]
        paragraphs = "\n".join(lines).split("\n\n")
        return textwrap.indent(comment(*paragraphs), before) + "\n"

    text = (_TEMPLATES / template).read_text(encoding="utf-8")
    text = _CONDITION.sub(lambda found: found[2] if values[found[1]] else "", text)
    return _WRAPPED.sub(wrapped, _VALUE.sub(value, text))


def comment(*paragraphs: str) -> str:
    """Return paragraphs as lines of comments."""
    return "\n#\n".join(
        "\n".join(f"# {line}" for line in _lines(text, WIDTH - 2)) for text in paragraphs
    )


def _lines(text: str, width: int) -> list[str]:
    """Wrap a text between its words only."""
    return textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False)


_PLAIN = re.compile(r"[A-Za-z/][\w./@-]*")
_READ_AS_OTHERS = {"true", "false", "yes", "no", "on", "off", "null"}


def yaml_value(text: str, indent: int) -> str:
    """Return a string as a value of YAML; a long one is folded over several lines."""
    if len(text) > WIDTH - 30 and " " in text and "  " not in text:
        return "\n  ".join([">-", *_lines(text, WIDTH - indent - 2)])
    plain = _PLAIN.fullmatch(text) and text.lower() not in _READ_AS_OTHERS
    return text if plain else json.dumps(text)


def yaml_mapping(values: Mapping[str, str], indent: int) -> str:
    """Return variables as lines of a mapping, which are folded for this indentation."""
    return "\n".join(f"{name}: {yaml_value(text, indent)}" for name, text in values.items())


def yaml_env(values: Mapping[str, str], indent: int) -> str:
    """Return variables as a container's list of name and value, folded for this indentation."""
    return "\n".join(
        f"- name: {name}\n" + textwrap.indent(f"value: {yaml_value(text, indent + 2)}", "  ")
        for name, text in values.items()
    )


def shell_exports(values: Mapping[str, str]) -> str:
    """Return variables as `export` lines; `$HOME` and the like in them are expanded."""
    lines = []
    for name, text in values.items():
        quoted = " \\\n  ".join(_lines(text, WIDTH - 12 - len(name)))
        needs_quotes = re.search(r"[^\w$./@:=-]", text) is not None
        lines.append(f'export {name}="{quoted}"' if needs_quotes else f"export {name}={quoted}")
    return "\n".join(lines)


def fetch_command(request: Request, target: str) -> str:
    """Return the shell command that fetches the one file and compares its digest."""
    check = f"echo '{request.sha256}  {target}' | sha256sum --check --quiet"
    return f"curl -fsSLo {target} {request.url} && {check}"
