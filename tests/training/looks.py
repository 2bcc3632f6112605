"""What the host reads of tensors: on a GPU it would wait for each, and a step that is being captured cannot."""

from torch.utils._python_dispatch import TorchDispatchMode


class Looks(TorchDispatchMode):
    """Counts how often the host reads a number of a tensor, for which it would wait on a GPU."""

    def __init__(self):
        super().__init__()
        self.times = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        self.times += name in ("_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal")
        return func(*args, **(kwargs or {}))
