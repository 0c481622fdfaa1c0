"""Loads each checkpoint that `cargo test --test interop` left in a directory with transformers, and compares logits.

Exits with 1 unless every logit is within 1e-5 of the largest.
"""
import pathlib
import sys

import torch
import transformers
from safetensors.torch import load_file

LIMIT = 1e-5


def main(root: str) -> int:
    dirs = sorted(path for path in pathlib.Path(root).iterdir() if (path / "vectors.safetensors").exists())
    if not dirs:
        print(f"{root}: no checkpoints")
        return 1
    failed = 0
    for path in dirs:
        vectors = load_file(path / "vectors.safetensors")
        model, info = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64, output_loading_info=True)
        odd = {key: value for key, value in info.items() if value}
        with torch.no_grad():
            theirs = model.eval()(vectors["ids"].to(torch.int64)).logits
        ours = vectors["logits"].to(torch.float64)
        error = ((theirs - ours).abs().max() / ours.abs().max()).item()
        good = error <= LIMIT and not odd
        failed += not good
        print(f"{path.name}: {type(model).__name__}, error {error:.1e} of the largest logit{'' if good else f', limit {LIMIT}, {odd}'}")
    print(f"transformers {transformers.__version__}: {len(dirs) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
