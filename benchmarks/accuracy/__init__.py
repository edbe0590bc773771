"""Size and accuracy on real data: ``python -m benchmarks.accuracy --peer PYTHON --cache FOLDER``.

Every method compresses the float32 tensors of a network. The restored tensors are loaded into the same PyTorch module,
which is evaluated on the same test samples. No test sample occurs in training or calibration; the program checks it.

A curve is measured from large to small files until the network is too inaccurate. Then more points are measured where
the accuracy falls by half a point and by a point. Each measurement is a line of JSON, so an interrupted run continues.
Networks with fewer than 1,000 test samples are compared by their agreement with the float32 network, and left out of
means.

Modules: ``data`` (samples), ``modules`` (PyTorch modules), ``networks`` (modules with weights and samples),
``methods`` (compression), ``scores`` (intervals, interpolation), ``pages`` (tables and charts).
"""
