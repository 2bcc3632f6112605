"""A U-Net of diffusers on a GPU: the same numbers, in a layout and with kernels that fit. Everything here could go."""
