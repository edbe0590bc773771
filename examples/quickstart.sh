#!/bin/sh
# Compress a network, restore it, and compare size, values and accuracy: sh examples/quickstart.sh
# Writes digits.nnr and restored.nnef to the current folder. Requires only nnr_codec.
set -eu
examples=$(dirname "$0")
model=$examples/digits/digits.nnef

nnr encode "$model" -o digits.nnr -f                    # --quality, --target-size or --lossless choose another size
nnr ls digits.nnr                                       # tensors with coding tools and bytes
nnr decode digits.nnr -o restored.nnef -f
python "$examples/digits/evaluate.py" "$model" restored.nnef
