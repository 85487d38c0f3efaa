"""``ipex=True``: intel-extension-for-pytorch's prepacked weights and fused layers on a float model of the torch engine.

``ipex.optimize`` is applied, not ``ipex.llm.optimize``. The latter replaces attention and its cache by ones with
indirect access, which after the prompt are correct for forwards of one row only: of three rows, on version 2.8.0, the
second and third were wrong by more than a tenth of the largest logit. Drafts and chunked prompts have several rows. A
model with ``ipex.llm.optimize`` fails the tests of ``fitness`` when it is loaded or wrapped.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch

from ipex_lookahead.errors import EngineError, InputError, arg, first_line
from ipex_lookahead.formats import FLOATS

INSTALL = "pip install intel-extension-for-pytorch==2.8.0 torch==2.8.0 transformers==4.51.3"
DTYPES = (torch.float32, torch.bfloat16)


def check_ipex(label: str, dtype: torch.dtype, device: torch.device) -> Any:
    """Return the package if it is installed and applicable.

    Args:
        label: the weights' format.
        dtype: their dtype.
        device: their device.

    Raises:
        InputError: packed weights, which the extension does not support, or another dtype or device.
        EngineError: the package is not installed, or does not import with this release of torch.
    """
    if label not in FLOATS:
        raise InputError(
            f"{arg('ipex', True)} is for float weights, and these are {label!r}; leave it out, or take the format bf16"
        )
    if dtype not in DTYPES or device.type != "cpu":
        name = str(dtype).removeprefix("torch.")
        raise InputError(f"{arg('ipex', True)} runs float32 and bfloat16 on the CPU, not {name} on {device}")
    if importlib.util.find_spec("intel_extension_for_pytorch") is None:
        raise EngineError(
            f"{arg('ipex', True)} needs intel-extension-for-pytorch, which is not installed", hint=INSTALL
        )
    try:
        import intel_extension_for_pytorch as ipex
    except (Exception, SystemExit) as error:  # with another release of torch it exits the program
        raise EngineError(f"intel-extension-for-pytorch does not import: {first_line(error)}", hint=INSTALL) from None
    return ipex


def apply_ipex(ipex: Any, model: Any, dtype: torch.dtype) -> tuple[Any, str]:
    """Optimize the model in place; return it and an entry for ``describe()``."""
    optimized = ipex.optimize(model.eval(), dtype=dtype, inplace=True)
    return optimized, f"ipex.optimize of {ipex.__version__} (not ipex.llm.optimize: its cache takes one row a forward)"
