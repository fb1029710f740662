from __future__ import annotations

import ast
import copy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from nets_examples import built, model_of, randomised, residual, run, single, small_net
from torch import Tensor, nn

from tadnn.errors import CorruptFile, RequestError, Unwritable
from tadnn.nets import (
    Add,
    Block,
    Linear,
    Node,
    ReLU,
    load_weights,
    save_weights,
    to_onnx,
)


class TestModule:
    def test_seed_decides_and_leaves_the_caller_alone(self) -> None:
        net = small_net()
        torch.manual_seed(5)
        expected = torch.rand(3)
        torch.manual_seed(5)
        first = net.to_module(seed=1)
        assert torch.equal(torch.rand(3), expected)
        second, other = net.to_module(seed=1), net.to_module(seed=2)
        for name, value in first.state_dict().items():
            assert torch.equal(value, second.state_dict()[name])
        assert not torch.equal(run(first.eval(), net), run(other.eval(), net))

    def test_without_a_seed_the_callers_generator_decides(self) -> None:
        net = small_net()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            first, second = net.to_module().eval(), net.to_module().eval()
            torch.manual_seed(5)
            third = net.to_module().eval()
        assert torch.equal(run(first, net), run(third, net))
        assert not torch.equal(run(first, net), run(second, net))

    def test_initial_weights_are_torchs(self) -> None:
        net = built((3,), (("only", Block("one", (Node("linear", Linear(5), (-1,)),))),))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            expected = nn.Linear(3, 5)
        assert torch.equal(
            net.to_module(seed=3).state_dict()["only.linear.weight"], expected.weight
        )

    def test_names_and_mode(self) -> None:
        module = small_net().to_module()
        assert module.training
        assert [name for name, _ in module.named_children()] == [
            "stem",
            "stage1_1",
            "stage1_2",
            "stage2_1",
            "stage2_2",
            "head",
        ]
        assert "stage2_1.shortcut.weight" in module.state_dict()
        assert module.get_submodule("stage1_1.conv1").in_channels == 4

    def test_parameters_and_output(self) -> None:
        net = small_net()
        module = net.to_module(seed=0).eval()
        assert sum(p.numel() for p in module.parameters()) == net.parameters
        assert run(module, net, batch=3).shape == net.output_shape(batch=3) == (3, 10)

    def test_against_the_same_network_written_by_hand(self) -> None:
        net = built((4, 8, 8), (("only", residual(8, True)),))
        module = randomised(net.to_module())
        part = module.get_submodule("only")

        def by_hand(x: Tensor) -> Tensor:
            main = part.conv2(torch.relu(part.conv1(x)))  # type: ignore[operator]
            return main + part.shortcut(x)  # type: ignore[operator]

        x = torch.randn((2, 4, 8, 8), generator=torch.Generator().manual_seed(0))
        with torch.inference_mode():
            assert torch.equal(module(x), by_hand(x))

    def test_a_layer_may_take_one_tensor_twice(self) -> None:
        net = single(Node("relu", ReLU(), (-1,)), Node("add", Add(), (0, 0)))
        x = torch.randn((2, 4, 8, 8), generator=torch.Generator().manual_seed(0))
        assert torch.equal(net.to_module()(x), 2 * torch.relu(x))

    def test_replaced_children_take_effect(self) -> None:
        net = small_net()
        module = net.to_module(seed=0).eval()
        module.get_submodule("head").classifier = nn.Identity()
        assert run(module, net).shape == (2, 8)

    def test_copies_are_independent(self) -> None:
        net = small_net()
        module = net.to_module(seed=0).eval()
        before = run(module, net)
        copied = randomised(copy.deepcopy(module))
        assert torch.equal(run(module, net), before)
        assert not torch.equal(run(copied, net), before)

    def test_gradients_reach_every_parameter(self) -> None:
        net = small_net()
        module = randomised(net.to_module()).train()
        x = torch.randn((4, *net.input_shape), generator=torch.Generator().manual_seed(0))
        module(x).square().sum().backward()
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in module.parameters())


class TestSource:
    def test_imports_only_torch(self) -> None:
        imported = set()
        for node in ast.walk(ast.parse(small_net().to_source())):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(node.module)
        assert imported == {"torch"}

    def test_runs_without_tadnn(self, tmp_path: Path) -> None:
        """In another process, with a weights file, as whoever gets the export does it."""
        net = small_net()
        module = randomised(net.to_module())
        (tmp_path / "model.py").write_text(net.to_source())
        save_weights(module, tmp_path / "weights.safetensors")
        code = (
            "import sys, torch, safetensors.torch\n"
            "sys.modules['tadnn'] = None\n"
            "sys.path.insert(0, '.')\n"
            "from model import Model\n"
            "model = Model()\n"
            "model.load_state_dict(safetensors.torch.load_file('weights.safetensors'))\n"
            "x = torch.randn((2, 3, 16, 16), generator=torch.Generator().manual_seed(2))\n"
            "print(model.eval()(x).double().sum().item())\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            check=True,
            timeout=120,
            capture_output=True,
            text=True,
        )
        assert float(done.stdout) == run(module, net).double().sum().item()

    def test_equals_the_module(self) -> None:
        net = small_net()
        module = randomised(net.to_module())
        written = model_of(net.to_source())
        assert written.state_dict().keys() == module.state_dict().keys()
        written.load_state_dict(module.state_dict())
        assert torch.equal(run(written, net), run(module, net))

    def test_equal_blocks_share_a_class(self) -> None:
        body = ast.parse(small_net().to_source()).body
        classes = [node.name for node in body if isinstance(node, ast.ClassDef)]
        assert classes == ["Stem1", "Residual1", "Residual2", "Residual3", "Head1", "Model"]

    def test_states_the_shapes(self) -> None:
        text = small_net().to_source()
        assert "[batch, 3, 16, 16] and gives [batch, 10]" in text


class TestWeights:
    def test_round_trip(self, tmp_path: Path) -> None:
        net, path = small_net(), tmp_path / "new" / "weights.safetensors"
        module = randomised(net.to_module())
        save_weights(module, path)
        other = net.to_module(seed=9).eval()
        load_weights(other, path)
        assert torch.equal(run(other, net), run(module, net))
        assert [p.name for p in path.parent.iterdir()] == ["weights.safetensors"]

    def test_no_such_file(self, tmp_path: Path) -> None:
        with pytest.raises(RequestError, match=r"no such file: .*absent"):
            load_weights(small_net().to_module(), tmp_path / "absent")

    def test_a_folder(self, tmp_path: Path) -> None:
        with pytest.raises(RequestError, match=r"cannot read|not a readable"):
            load_weights(small_net().to_module(), tmp_path)

    def test_another_network(self, tmp_path: Path) -> None:
        save_weights(small_net(8).to_module(), tmp_path / "w")
        with pytest.raises(RequestError, match="holds the weights of another network"):
            load_weights(small_net().to_module(), tmp_path / "w")

    def test_damaged(self, tmp_path: Path) -> None:
        good, path = tmp_path / "good", tmp_path / "damaged"
        net = small_net()
        save_weights(net.to_module(seed=0), good)
        raw = good.read_bytes()
        damaged = [b"", b"\x00", raw[:7], raw[:100], raw[:-1], b"\xff" * 64, raw[8:], b"PK\x03\x04"]
        for content in damaged:
            path.write_bytes(content)
            with pytest.raises(CorruptFile, match="is not a readable safetensors file"):
                load_weights(net.to_module(), path)

    def test_a_full_disk(self, tmp_path: Path) -> None:
        """The limit on file sizes stands in for it; what stood there stays."""
        path = tmp_path / "w"
        path.write_text("old")
        code = (
            "import resource, signal, sys\n"
            "from pathlib import Path\n"
            "import torch\n"
            "from tadnn.errors import Unwritable\n"
            "from tadnn.nets import save_weights\n"
            "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))\n"
            "try:\n"
            "    save_weights(torch.nn.Linear(100, 100), Path(sys.argv[1]))\n"
            "except Unwritable as error:\n"
            "    print(error)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, str(path)],
            check=True,
            timeout=120,
            capture_output=True,
            text=True,
        )
        assert done.stdout.startswith(f"cannot write {path}: ")
        assert [p.name for p in tmp_path.iterdir()] == ["w"]
        assert path.read_text() == "old"

    def test_unwritable(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(Unwritable, match="cannot write"):
            save_weights(small_net().to_module(), tmp_path / "file" / "w")


class TestOnnx:
    def test_equals_the_module_for_any_batch(self, tmp_path: Path) -> None:
        import onnx
        import onnxruntime

        net, path = small_net(), tmp_path / "new" / "net.onnx"
        module = randomised(net.to_module()).train()
        module.get_submodule("stage1_1").eval()  # modes of parts survive too
        modes = [part.training for part in module.modules()]
        to_onnx(module, net.input_shape, path)
        assert [part.training for part in module.modules()] == modes
        assert [p.name for p in path.parent.iterdir()] == ["net.onnx"]
        onnx.checker.check_model(path, full_check=True)
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        module.eval()
        for batch in (1, 2, 7):
            x = torch.randn((batch, 3, 16, 16), generator=torch.Generator().manual_seed(batch))
            (got,) = session.run(["output"], {"input": x.numpy()})
            np.testing.assert_allclose(got, run(module, net, batch).numpy(), rtol=1e-4, atol=1e-5)

    def test_unwritable_leaves_the_mode(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        module = small_net().to_module()
        with pytest.raises(Unwritable, match="cannot write"):
            to_onnx(module, (3, 16, 16), tmp_path / "file" / "net.onnx")
        assert module.training
