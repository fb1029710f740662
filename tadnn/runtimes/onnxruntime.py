"""ONNX Runtime on a CPU: the network as ONNX, all graph optimisations, one session."""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from tadnn.errors import RequestError, WorkFailed
from tadnn.kernels import Kernel
from tadnn.nets import Block, Net, Shape
from tadnn.runtimes.base import Observation, Run, Runtime
from tadnn.runtimes.ort_lowering import launches
from tadnn.runtimes.ort_profile import NodeMap, OptimisedNode, read_runs
from tadnn.runtimes.setting import Setting

if TYPE_CHECKING:
    import numpy as np

_PROVIDERS: Final = ["CPUExecutionProvider"]
_ERRORS_ONLY: Final = 3
# Threads that were asleep take some twenty runs of a small network to settle.
_WARM_UP_RUNS: Final = 3
_WARM_UP_S: Final = 0.003
_OBSERVED_S: Final = 0.3
_RUNS: Final = (8, 60)
# What takes long is warm after one run, and known after few.
_LONG_S: Final = 0.4
_LONG_RUNS: Final = (3, 3)
_MOST_BYTES: Final = 2_000_000_000
# A profile whose nodes are mostly no kernel of ours isn't this network's.
_LEAST_EXPLAINED: Final = 0.5


class OnnxRuntime(Runtime):
    """``session.run`` of the exported network, batch fixed, as a plain script does.

    A node alone would pay for reordering its input and output, which inside a network only
    some do: kernels are observed in whole networks, by ONNX Runtime's own profiler.
    """

    name: ClassVar[str] = "onnxruntime"
    kinds: ClassVar[tuple[str, ...]] = ("cpu",)
    observed: ClassVar[bool] = True

    def preload(self) -> None:
        """Import ONNX Runtime and what writes graphs; no torch."""
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401

        import tadnn.runtimes.onnx_graph  # noqa: F401

    def lower(self, block: Block, shape: Shape, dtype: str) -> tuple[Kernel, ...]:
        """Return what the optimised graph launches."""
        return tuple(launch.kernel for launch in launches(block, shape, dtype))

    def prepare_kernel(self, kernel: Kernel, setting: Setting, device: str = "cpu") -> Run:
        """Refuse: kernels are observed in networks."""
        self.check(setting)
        raise RequestError(
            f"onnxruntime runs kernels in whole networks only, where they are observed; "
            f"got {kernel.key}"
        )

    def prepare_net(self, net: Net, batch: int, setting: Setting, device: str = "cpu") -> Run:
        """Return a callable of ``session.run`` on one random batch."""
        _check_device(device)
        self.check(setting)
        session = _session(_model_bytes(net, batch), setting)
        feed = {"input": _example(net, batch)}
        return lambda: session.run(None, feed)

    def observe_net(
        self, net: Net, batch: int, setting: Setting, device: str = "cpu"
    ) -> Observation:
        """Run a network with the profiler on; return each kernel's times, one per run."""
        from tadnn.runtimes.onnx_graph import lacking_layers

        _check_device(device)
        self.check(setting)
        if lacking := lacking_layers(net):
            raise RequestError(
                f"onnxruntime's kernels are observed by the names of the layers that tadnn writes; "
                f"it can't write {', '.join(lacking)} (net {net.key})"
            )
        feed = {"input": _example(net, batch)}
        with tempfile.TemporaryDirectory(prefix="tadnn-profile-") as folder:
            optimised = Path(folder) / "optimised.onnx"
            data = _model_bytes(net, batch)
            session = _session(data, setting, profile=Path(folder) / "run", optimised=optimised)
            del data
            warm_up, once, spent = 0, 0.0, 0.0
            while (warm_up < _WARM_UP_RUNS or spent < _WARM_UP_S) and once < _LONG_S:
                start = time.perf_counter()
                session.run(None, feed)
                once = time.perf_counter() - start
                spent += once
                warm_up += 1
            fewest, most = _RUNS if once < _LONG_S else _LONG_RUNS
            for _ in range(max(fewest, min(most, math.ceil(_OBSERVED_S / once)))):
                session.run(None, feed)
            runs = read_runs(Path(session.end_profiling()))[warm_up:]
            nodes = NodeMap(net, batch, setting.dtype, _nodes_of(optimised))
        observed: Observation = {}
        explained = []
        for run in runs:
            times, rest = nodes.kernel_times(run)
            known = sum(times.values())
            explained.append(known / max(known + rest, 1e-9))
            found: dict[Kernel, list[float]] = {}
            for index, time_us in times.items():
                found.setdefault(nodes.launches[index].kernel, []).append(time_us)
            for kernel, values in found.items():
                observed.setdefault(kernel, []).append(sum(values) / len(values))
        # The median: where another process had the core for a moment, it had it in few runs.
        share = statistics.median(explained)
        if share < _LEAST_EXPLAINED:
            raise WorkFailed(
                f"of a profile of ONNX Runtime at least {100 * _LEAST_EXPLAINED:.0f} % of the "
                f"time belongs to known kernels; got {100 * share:.0f} % for net {net.key}"
            )
        return observed

    @contextmanager
    def session(self, setting: Setting, device: str = "cpu") -> Iterator[None]:
        """Fix nothing: threads belong to each session of ONNX Runtime."""
        self.check(setting)
        _check_device(device)
        yield

    def check(self, setting: Setting) -> None:
        """Check that a setting is one of this runtime's: fp32, nchw, ieee.

        Raises:
            RequestError: it isn't.
        """
        super().check(setting)
        for name, valid in (("dtype", "fp32"), ("math", "ieee"), ("layout", "nchw")):
            value = getattr(setting, name)
            if value != valid:
                raise RequestError(f"onnxruntime runs {name} {valid} only; got {value}")

    def environment(self, setting: Setting) -> dict[str, str]:
        """Return the version and the options that sessions run with."""
        import onnxruntime

        return {
            "onnxruntime": onnxruntime.__version__,
            "session": f"intra-op threads {setting.threads}, inter-op 1, sequential, "
            f"all optimisations, threads spin within a run only, batch fixed",
        }


def _check_device(device: str) -> None:
    if device != "cpu":
        raise RequestError(f"onnxruntime has no device {device!r}. Valid: cpu.")


def _session(
    model: bytes, setting: Setting, *, profile: Path | None = None, optimised: Path | None = None
) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = setting.threads
    # Threads of a session that has nothing to do go on spinning, and take the cores from whatever
    # is measured in turns with it: 15 ms instead of 7 on two cores.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = _ERRORS_ONLY
    if profile is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile)
    if optimised is not None:
        # Weights go beside it: nobody reads them.
        options.optimized_model_filepath = str(optimised)
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_file_name", "weights.bin"
        )
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_min_size_in_bytes", "64"
        )
    return ort.InferenceSession(model, options, providers=_PROVIDERS)


def optimised_nodes(model: bytes, setting: Setting) -> list[OptimisedNode]:
    """Return the nodes that ONNX Runtime makes of a model."""
    with tempfile.TemporaryDirectory(prefix="tadnn-optimised-") as folder:
        path = Path(folder) / "optimised.onnx"
        _session(model, setting, optimised=path)
        return _nodes_of(path)


def _nodes_of(optimised: Path) -> list[OptimisedNode]:
    import onnx

    graph = onnx.load(optimised, load_external_data=False).graph
    return [(node.name, node.op_type, list(node.input), list(node.output)) for node in graph.node]


def _model_bytes(net: Net, batch: int) -> bytes:
    """Return the network as ONNX: written layer by layer, or exported where a layer isn't known."""
    from tadnn.runtimes.onnx_graph import lacking_layers, net_to_onnx

    if (size := 4 * net.parameters) > _MOST_BYTES:
        raise RequestError(
            f"onnxruntime runs networks of at most {_MOST_BYTES / 1e9:.1f} GB here, which is what "
            f"one ONNX file holds; got {size / 1e9:.1f} GB (net {net.key})"
        )
    if not lacking_layers(net):
        data: bytes = net_to_onnx(net, batch).SerializeToString()
        return data
    from tadnn.nets import to_onnx

    with tempfile.TemporaryDirectory(prefix="tadnn-export-") as folder:
        path = Path(folder) / "net.onnx"
        to_onnx(net.to_module(seed=0), net.input_shape, path, input_dtype=net.input_dtype)
        return path.read_bytes()


def _example(net: Net, batch: int) -> np.ndarray:
    import numpy as np

    generator = np.random.default_rng(0)
    shape = (batch, *net.input_shape)
    if net.input_dtype == "int64":
        return generator.integers(net.input_limit or 1, size=shape)
    return generator.standard_normal(shape, np.float32)
