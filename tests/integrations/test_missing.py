"""Frameworks that are not installed."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest


@pytest.mark.parametrize("framework", ["accelerate", "transformers", "lightning"])
def test_a_framework_that_is_missing_is_one_sentence(framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = f"dgt.integrations.{framework}"
    monkeypatch.delitem(sys.modules, module, raising=False)
    if framework == "transformers":  # is made of Accelerate, which may be there
        pytest.importorskip("accelerate")
    for name in [name for name in sys.modules if name.partition(".")[0] == framework]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, framework, None)
    with pytest.raises(ImportError, match=rf"^{module} needs .*: pip install 'dgt\[{framework}\]'$"):
        importlib.import_module(module)


def test_dgt_itself_imports_no_framework() -> None:
    program = "import dgt, sys; dgt.Network, dgt.Checkpoints, dgt.shard; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "torch" in loaded
    assert not loaded & {"accelerate", "transformers", "lightning", "torchdata"}
