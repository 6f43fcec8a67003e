"""Small installed frameworks that are asked about a command: their parsers alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

OPENRLHF = """
import argparse
import torch  # a real one takes seconds
from vllm.engine import LLM

def train(args):
    open(args.ckpt.path if hasattr(args.ckpt, "path") else args.ckpt, "w").write("trained")

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--train.batch_size", type=int, default=128)
    parser.add_argument("--ckpt", default="trained")
    parser.add_argument("--vllm.num_engines", type=int, default=None)
    args = parser.parse_args()
    assert getattr(args, "vllm.num_engines") != 3, "3 engines do not fit"
    print("its own output")
    train(args)
"""
"""As OpenRLHF's programs are: heavy imports, a parser and assertions below, `train` at the end."""
UNKNOWN = """
import argparse

if __name__ == "__main__":
    args = argparse.ArgumentParser().parse_args()
    open("trained", "w").write("trained")
"""
"""A program of a later release, without `train`: to run it could do anything."""
MAIN_PPO = '''
import a_module_that_is_not_there
import hydra

@hydra.main(config_path="config", config_name="ppo_trainer", version_base=None)
def main(config):
    """Never called."""
'''
HYDRA = '''
"""A stand-in for hydra: the keys of one JSON file, and no others."""
import contextlib, json, pathlib
from hydra.errors import ConfigCompositionException

_folder = None

@contextlib.contextmanager
def initialize_config_dir(folder, version_base=None):
    global _folder
    _folder = pathlib.Path(folder)
    yield

def compose(name, overrides):
    file = _folder / f"{name}.json"
    if not file.exists():
        raise ConfigCompositionException(f"Cannot find primary config '{name}'.")
    known = json.loads(file.read_text())
    for word in overrides:
        key = word.partition("=")[0]
        bare = key.lstrip("+")
        if bare == "hydra.searchpath" or (key.startswith("+") and bare not in known):
            continue
        if bare not in known or key.startswith("+"):
            what = f"Could not override '{bare}'.\\nTo append use +{word}"
            raise ConfigCompositionException(what)
    return known
'''
HYDRA_UTILS = """
import argparse

def get_args_parser():
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("overrides", nargs="*")
    for flag in ("--config-path", "--config-name", "--config-dir"):
        parser.add_argument(flag)
    return parser
"""
OMEGACONF = """
class OmegaConf:
    to_container = staticmethod(dict)
"""


def install_openrlhf(place: Path, program: str = OPENRLHF) -> None:
    """Install an OpenRLHF of one program."""
    write(place / "openrlhf/__init__.py")
    write(place / "openrlhf/cli/__init__.py")
    write(place / "openrlhf/cli/train_ppo_ray.py", program)


def install_verl(
    place: Path, keys: str = '{"trainer.nnodes": 1, "data.train_batch_size": 4}'
) -> None:
    """Install a verl whose configuration has these keys, and a stand-in for hydra."""
    write(place / "verl/__init__.py", "raise ImportError('verl is not imported')")
    write(place / "verl/trainer/main_ppo.py", MAIN_PPO)
    write(place / "verl/trainer/config/ppo_trainer.json", keys)
    write(place / "hydra/__init__.py", HYDRA)
    write(place / "hydra/errors.py", "class ConfigCompositionException(Exception):\n    pass\n")
    write(place / "hydra/_internal/__init__.py")
    write(place / "hydra/_internal/utils.py", HYDRA_UTILS)
    write(place / "omegaconf.py", OMEGACONF)


def write(file: Path, text: str = "") -> None:
    """Write a file and its folders."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
