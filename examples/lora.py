"""Train a LoRA adapter with peft, compress it, and compare its outputs: ``python examples/lora.py``.

The adapter belongs to a small random transformer. ``adapter_config.json`` is small and stays as it is.
"""

import copy
import sys
import tempfile
from pathlib import Path

import nnr_codec as nnr

try:
    import torch
    from peft import LoraConfig, PeftModel, get_peft_model
    from torch import nn
except ModuleNotFoundError as error:
    sys.exit(f"this example requires the package {error.name}; install it with: pip install torch peft")


class Network(nn.Module):
    """Classifier of sequences of 16 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 128)
        layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(128, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embedding(tokens)).mean(1))


def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random sequences and their classes: the quarter of the vocabulary that is most frequent."""
    tokens = torch.randint(100, (size, 16))
    return tokens, nn.functional.one_hot(tokens // 25, 4).sum(1).argmax(1)


def snr(before: torch.Tensor, after: torch.Tensor) -> float:
    return float(10 * torch.log10(before.square().sum() / (after - before).square().sum()))


def product(adapter: nnr.Model, name: str) -> torch.Tensor:
    """Return B·A, the change of a weight up to a factor."""
    a, b = (torch.from_numpy(adapter[name.replace("lora_A", part)]) for part in ("lora_A", "lora_B"))
    return b.double() @ a.double()


torch.manual_seed(1)
torch.set_num_threads(1)
base = Network()
config = LoraConfig(r=8, lora_alpha=16, target_modules=["linear1", "linear2"], modules_to_save=["head"])
model = get_peft_model(copy.deepcopy(base), config)
optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=5e-3)
for _ in range(60):
    tokens, classes = batch(32)
    loss = nn.functional.cross_entropy(model(tokens), classes)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

with tempfile.TemporaryDirectory() as temporary:
    folder = Path(temporary)
    model.save_pretrained(folder)
    file = folder / "adapter_model.safetensors"
    trained = nnr.load(file)
    report = nnr.encode_file(trained, folder / "adapter_model.nnr", preset="lora")
    print(f"size:    {file.stat().st_size:,} bytes with safetensors, {report.nbytes:,} bytes with NNR")

    decoded = nnr.decode(folder / "adapter_model.nnr")
    products = [snr(product(trained, name), product(decoded, name)) for name in trained if "lora_A" in name]
    print(f"error:   {min(products):.1f} dB of SNR for the worst product of an A and a B")
    nnr.save(decoded, file, overwrite=True)
    restored = PeftModel.from_pretrained(copy.deepcopy(base), folder)

tokens, classes = batch(1000)
with torch.no_grad():
    plain, before, after = (each.eval()(tokens) for each in (base, model, restored))
print(f"outputs: {snr(before - plain, after - plain):.1f} dB of SNR for the effect of the adapter")
accuracies = [float((outputs.argmax(1) == classes).double().mean()) for outputs in (before, after)]
print(f"correct: {accuracies[0]:.1%} before, {accuracies[1]:.1%} after")
